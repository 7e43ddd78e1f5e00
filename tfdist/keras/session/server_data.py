"""Data of workers of parameter servers: which of it is shared, and when it ends."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from tfdist._types import KerasModel
from tfdist.job import process
from tfdist.keras.prefetching import with_prefetch
from tfdist.keras.session.adapter import Distributor, KerasData
from tfdist.keras.session.participant import Participant
from tfdist.keras.session.session import FitSession, Session
from tfdist.keras.workers import trains_on_servers

if TYPE_CHECKING:
    import tensorflow as tf

_log = logging.getLogger("tfdist")


class ServerData(Participant[Session]):
    """The workers of parameter servers share training data; each sees all rows of other data.

    A Keras distributes the data of `evaluate` and `predict` like the data of `fit`, but these
    workers' metrics and predictions are their own.
    """

    @classmethod
    def of(cls, session: Session) -> ServerData | None:
        """Returns the participant, if it takes part."""
        if trains_on_servers(session.strategy):
            return cls(session)
        if isinstance(session, FitSession):
            _warn_of_training_alone(session.model)
        return None

    def open_data(
        self, data: KerasData, strategy: tf.distribute.Strategy, make: Callable[[Distributor], None]
    ) -> None:
        """Distributes data; `fit` prepares its training data first."""
        session, extended = self.session, strategy.extended
        if not isinstance(session, FitSession) or session.data is not None:
            with extended.input(shared=False):
                make(strategy)
            return
        with extended.input(shared=True, prepare=with_prefetch(session.model)):
            make(strategy)
        session.keras.count_own_batches(data, extended)


# Models that a warning is about already: a script may call fit for each epoch.
_told: weakref.WeakSet[KerasModel] = weakref.WeakSet()


def _warn_of_training_alone(model: KerasModel) -> None:
    worker = process.current.ps_worker
    if worker is None or worker.cluster.is_local or not process.current.has_server_variables:
        return
    if model in _told:
        return
    _told.add(model)
    _log.warning(
        "%s: fit trains model %r by itself: it was neither made nor compiled in the scope of "
        "ParameterServerStrategy, so its variables are not on the servers",
        worker.cluster.task_name,
        model.name,
    )
