"""The number of batches of an epoch, where a data service deals them out.

Each training worker takes batches of `tfdist.data.distribute` as they come, so that the number that
it gets differs from epoch to epoch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tfdist.job import process
from tfdist.keras.session.adapter import KerasData
from tfdist.keras.session.participant import Participant
from tfdist.keras.session.session import Session
from tfdist.keras.workers import is_ours


class EpochLengths(Participant[Session]):
    """In a job with data workers each epoch of unknown length lasts until its data ends.

    A Keras ends later epochs after as many batches as the first had.
    """

    @classmethod
    def of(cls, session: Session) -> EpochLengths | None:
        """Returns the participant, if it takes part."""
        if not is_ours(session.strategy) or not process.current.is_initialized:
            return None
        return cls(session) if process.current.cluster("fit").data_dispatcher else None

    def around_steps(
        self, steps: contextlib.AbstractContextManager[None], data: KerasData
    ) -> contextlib.AbstractContextManager[None]:
        """The iterator forgets the number of batches of this epoch."""
        return self._of_any_length(steps, data)

    @contextlib.contextmanager
    def _of_any_length(
        self, steps: contextlib.AbstractContextManager[None], data: KerasData
    ) -> Iterator[None]:
        keras = self.session.keras
        known = keras.known_batches(data)
        with steps:
            yield
        keras.expect_batches(data, known)
