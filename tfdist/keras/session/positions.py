"""The position of a `fit` in its data, and how it continues from where another one stood."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator

import tensorflow as tf

from tfdist._types import DistributedData, KerasModel, Logs
from tfdist.data.openings import Openings, Target, splits_batches
from tfdist.data.order import fingerprint_of_seeds, tell_of_other_orders
from tfdist.data.position import InputPosition
from tfdist.errors import TfdistError
from tfdist.keras import exchange
from tfdist.keras.drawing import drawing
from tfdist.keras.own_state import OwnState
from tfdist.keras.session.adapter import KerasData
from tfdist.keras.session.participant import Participant
from tfdist.keras.session.session import FitSession, Session, fits
from tfdist.keras.training_state import TrainingState
from tfdist.keras.workers import rank_of, trains_on_servers

_log = logging.getLogger("tfdist")


class Positions(Participant[FitSession], abc.ABC):
    """The position of a `fit` in its data. A subclass knows how a Keras reads data.

    Attributes:
      resumed: where this `fit` continued from; `None` if it began at its beginning.
      checkpoints_of_all: whether all workers have as many `ModelCheckpoint`s.
    """

    def __init__(self, session: FitSession) -> None:
        super().__init__(session)
        self.model = session.model
        self.resumed: TrainingState | None = None
        self.checkpoints_of_all = False
        self._openings: Openings | None = None
        self._epochs_ended = 0
        self._start: TrainingState | None = None
        self._is_before_step = False

    def read(self, data: KerasData, openings: Openings) -> None:
        """Takes the training data: Keras's iterator, and the data that it opens."""
        self.session.data, self._openings = data, openings
        # Data that is read in between draws orders, too.
        openings.others = drawing([self.session.arguments.get("validation_data")])

    def before_fit(self) -> None:
        """Compares the workers: their shuffles, and their `ModelCheckpoint`s.

        All have to have a `ModelCheckpoint` that saves the state of all of them; a script may give
        it to the chief alone. With parameter servers workers come and go.
        """
        if trains_on_servers(self.session.strategy):
            return
        kind = self.session.keras.checkpoint_type
        own = sum(isinstance(callback, kind) for callback in self.session.callbacks.callbacks)
        found = exchange.gather(self.model, bytes([min(own, 255)]) + self._seeds_of_orders())
        self.checkpoints_of_all = len({each[:1] for each in found}) == 1
        if len({each[1:] for each in found}) > 1 and rank_of(self.model) == 0:
            tell_of_other_orders()

    def _seeds_of_orders(self) -> bytes:
        """Bytes that are equal on workers whose shuffles have equal seeds."""
        assert self._openings is not None
        datasets = [*self._openings.source.datasets] if self._openings.splits_batches else []
        test = self.session.arguments.get("validation_data")
        if isinstance(test, tf.data.Dataset) and splits_batches(self.session.strategy, test):
            datasets.append(test)
        return fingerprint_of_seeds(datasets)

    def begin_epoch(self) -> None:
        """Callbacks that save every N batches count on."""
        if self._start is None or not self._start.position.batch:
            return
        for callback in self.session.callbacks.callbacks:
            if hasattr(callback, "_last_batch_seen"):
                callback._last_batch_seen = self._start.position.batch - 1

    def results(self, logs: Logs, make: Callable[[Logs], Logs], *, of_validation: bool) -> Logs:
        """An epoch that was interrupted after its last batch is logged as any other."""
        if not logs and not of_validation and self.resumed is not None:
            return self.model.get_metrics_result()
        return make(logs)

    def end_epoch(self) -> None:
        """Counts the epochs that have ended."""
        self._epochs_ended += 1

    @property
    @abc.abstractmethod
    def dataset(self) -> DistributedData:
        """The data that Keras's iterator opens."""

    @property
    @abc.abstractmethod
    def rows(self) -> int | None:
        """The number of rows that are trained on, if it is known before they are read."""

    @abc.abstractmethod
    def begin_at(self, epoch: int) -> None:
        """Makes `fit` begin with another epoch than it was told."""

    @property
    @abc.abstractmethod
    def _opens_for_epoch(self) -> bool:
        """Whether Keras opens the data for an epoch that begins now."""

    @property
    @abc.abstractmethod
    def _yields_once(self) -> bool:
        """Whether the data is a Python generator, which `fit` has been given itself."""

    def state(self, of_all: bool) -> TrainingState:
        """The state that a checkpoint should hold now.

        Args:
          of_all: with the state of all workers' replicas, which all call this; else this worker's.
        """
        return TrainingState(self.position, OwnState.of(self.model, of_all))

    def describe(self) -> str:
        """The step that is being made, in words."""
        return f"batch {self.session.batch} of epoch {self.session.epoch + 1}"

    @contextlib.contextmanager
    def before_step(self) -> Iterator[None]:
        """Within it the state is that before the step that is being made."""
        self._is_before_step = True
        try:
            yield
        finally:
            self._is_before_step = False

    @property
    def position(self) -> InputPosition:
        """The next batch."""
        if self._start is not None:  # the first epoch has not begun
            return self._start.position
        position = self._position()
        if not self._is_before_step:
            return position
        return dataclasses.replace(
            position,
            batch=position.batch - self.session.in_step,
            batches=position.batches - self.session.in_step,
        )

    def _position(self) -> InputPosition:
        assert self._openings is not None
        at, drawn = self._openings.present, self._openings.drawn()
        if self.session.batch or not self._opens_for_epoch:
            at = dataclasses.replace(at, draws_now=drawn)
        else:
            at = self._openings.next_opening
            at = at if at.draws is not None else dataclasses.replace(at, draws=drawn)
        seed = getattr(self._openings.source, "seed", None)
        return InputPosition(
            epoch=self.session.epoch,
            batch=self.session.batch,
            opening=at.opening,
            batches=at.batches,
            openings_read=at.openings_read,
            epochs_ended=self._epochs_ended,
            seed=None if seed is None else seed.value,
            seed_is_drawn=seed is not None and seed.is_drawn,
            workers=exchange.workers_of(self.model),
            draws=at.draws,
            draws_now=at.draws_now,
        )

    def go_on_from(self, state: TrainingState, *, beside_others: bool = False) -> None:
        """Makes `fit`, which has not begun its first epoch, continue from a state.

        The model has the values that belong to the state already.

        Args:
          state: of this program, or of another member.
          beside_others: other members also continue from there, and share their batches with this
            one.

        Raises:
          TfdistError: this process would read other batches beside them.
        """
        assert self._openings is not None
        position = state.position
        restore = getattr(self._openings.source, "restore", None)
        reasons = [] if restore is None else restore(position)
        if reasons and beside_others:
            raise TfdistError(
                "fit: expected the order of batches that the other members have, but "
                f"{'; '.join(reasons)} in this process"
            )
        reasons += self._openings.go_to(
            Target(
                position.opening,
                position.batches,
                position.openings_read,
                position.draws,
                position.draws_now,
            )
        )
        own = exchange.workers_of(self.model)
        if position.workers != own and not self._openings.splits_batches:
            reasons.append(
                f"there were {position.workers} workers and are {own}, which share the data by "
                "files or by batches"
            )
        if reasons and (beside_others or rank_of(self.model) == 0):
            _log.warning(
                "fit continues at batch %d of epoch %d, but its data cannot be positioned exactly: "
                "%s. The batches that follow are others than without the interruption; some rows "
                "of the epoch may come twice and others not at all",
                position.batch,
                position.epoch + 1,
                "; ".join(dict.fromkeys(reasons)),
            )
        state.own.restore(self.model, metrics=False)
        self.begin_at(position.epoch)
        self._epochs_ended = position.epochs_ended
        self._start = self.resumed = state

    def why_not_again(self) -> str | None:
        """Why another `fit` of this process cannot read the same batches; `None` if it can."""
        source = None if self._openings is None else self._openings.source
        if source is None:
            return None
        if self._yields_once:
            return "its Python generator cannot go back"
        if getattr(source, "remembers_epochs", False):
            return "its PyDataset was told of the ends of epochs"
        return None

    def _begin_steps(self) -> TrainingState | None:
        """Goes to the first batch of the steps that begin.

        Returns:
          Where `fit` continues from, if these are its first steps.
        """
        assert self._openings is not None
        start, self._start = self._start, None
        self._openings.prepare()
        self.session.batch = 0 if start is None else start.position.batch
        # Keras has set the metrics to zero.
        if start is not None and self.session.batch:
            start.own.restore(self.model, metrics=True)
        return start

    def _begin_step(self, batch: int, size: int) -> None:
        """Counts the batches of a step, whose first one is number `batch` of the epoch."""
        assert self._openings is not None
        self.session.batch = batch + size
        self._openings.batches += size
        self.session.in_step = size


def positions_in(session: Session) -> Positions | None:
    """The position in the data of a call; `None` if it has none."""
    return next((one for one in session.participants if isinstance(one, Positions)), None)


def positions_of(model: KerasModel) -> Positions | None:
    """The position of the newest `fit` of a model, if there is one whose data is known."""
    for fit in reversed(fits()):
        positions = positions_in(fit)
        if fit.model is model and positions is not None:
            return positions if fit.data is not None else None
    return None
