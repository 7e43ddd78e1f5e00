"""Where a `fit` stands, and how it goes on from where another one stood."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter

from tfdist.data.draws import Drawing
from tfdist.data.openings import Openings, Target
from tfdist.data.position import InputPosition
from tfdist.data.rows import rows_of
from tfdist.errors import TfdistError
from tfdist.keras import exchange
from tfdist.keras.own_state import OwnState
from tfdist.keras.workers import rank_of
from tfdist.ops.trace import events

_log = logging.getLogger("tfdist")


@dataclasses.dataclass(frozen=True)
class TrainingState:
    """What a `fit` needs, besides the values of its model, to go on.

    Args:
      position: the next batch.
      own: what each replica has of its own, such as the states of random generators.
    """

    position: InputPosition
    own: OwnState


class Training:
    """One `fit` of one model of Keras 3; a subclass has one of tf_keras.

    Args:
      model: the model.
      others: what draws the orders of the data that is read in between, for validation.

    Attributes:
      epoch: the current epoch, from 0.
      batch: the next batch of this epoch, from 0.
      resumed: where this `fit` went on from; `None` if it began at its beginning.
      checkpoints_of_all: whether all workers have as many `ModelCheckpoint`s.
    """

    def __init__(self, model: Any, others: Sequence[Drawing] = ()) -> None:
        self.model = model
        self._others = others
        self.epoch = 0
        self.batch = 0
        self.resumed: TrainingState | None = None
        self.checkpoints_of_all = False
        self._iterator: Any = None
        self._openings: Openings | None = None
        self._epochs_ended = 0
        self._start: TrainingState | None = None
        # The batches of the step that is being made, or was made last.
        self._in_step = 0
        self._is_before_step = False

    @property
    def reads(self) -> Any:
        """Keras's iterator of the training data; `None` before it was made."""
        return self._iterator

    def read(self, iterator: Any, openings: Openings) -> None:
        """Says which data is trained on; Keras's iterator and the data that it opens."""
        self._iterator, self._openings = iterator, openings
        openings.others = self._others

    @property
    def dataset(self) -> Any:
        """What Keras's iterator opens."""
        assert self._iterator is not None
        return self._iterator._distributed_dataset

    @property
    def rows(self) -> int | None:
        """The number of rows that are trained on, if it is known before they are read."""
        assert self._iterator is not None
        adapter = self._iterator.data_adapter
        if not isinstance(adapter, ArrayDataAdapter):
            return rows_of(self.dataset)
        return rows_in(adapter.num_batches, adapter.batch_size, adapter.partial_batch_size)

    @property
    def initial_epoch(self) -> Any:
        """The first epoch, if another one than `fit` was told; Keras decides what stands for it."""
        return self.model._initial_epoch

    @initial_epoch.setter
    def initial_epoch(self, epoch: Any) -> None:
        self.model._initial_epoch = epoch

    def state(self, of_all: bool) -> TrainingState:
        """What a checkpoint should hold now.

        Args:
          of_all: with the state of all workers' replicas, which all call this; else this worker's.
        """
        return TrainingState(self.position, OwnState.of(self.model, of_all))

    def describe(self) -> str:
        """The step that is being made, in words."""
        return f"batch {self.batch} of epoch {self.epoch + 1}"

    @property
    def is_in_step(self) -> bool:
        """Whether callbacks have begun a step that has not ended."""
        return self._in_step > 0

    @contextlib.contextmanager
    def before_step(self) -> Iterator[None]:
        """Within it the state is that before the step that is being made."""
        self._is_before_step = True
        try:
            yield
        finally:
            self._is_before_step = False

    def step_is_done(self) -> None:
        """Says that the callbacks of a step are called: the state is that after it."""
        self._in_step = 0

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
            batch=position.batch - self._in_step,
            batches=position.batches - self._in_step,
        )

    @property
    def _opens_for_epoch(self) -> bool:
        """Whether Keras opens the data for an epoch that begins now."""
        assert self._iterator is not None
        # Not where steps_per_epoch lets one opening span several epochs.
        return self._iterator.steps_per_epoch is None or self._iterator._current_iterator is None

    def _position(self) -> InputPosition:
        assert self._openings is not None and self._iterator is not None
        at, drawn = self._openings.present, self._openings.drawn()
        if self.batch or not self._opens_for_epoch:
            at = dataclasses.replace(at, draws_now=drawn)
        else:
            at = self._openings.next_opening
            at = at if at.draws is not None else dataclasses.replace(at, draws=drawn)
        seed = getattr(self._openings.source, "seed", None)
        return InputPosition(
            epoch=self.epoch,
            batch=self.batch,
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
        """Makes `fit`, which has not begun its first epoch, go on from a state.

        The model has the values that belong to the state already.

        Args:
          state: of this program, or of another member.
          beside_others: other members go on from there, too, and share their batches with this one.

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
                "fit goes on at batch %d of epoch %d, but its data cannot be positioned exactly: "
                "%s. The batches that follow are others than without the interruption; some rows "
                "of the epoch may come twice and others not at all",
                position.batch,
                position.epoch + 1,
                "; ".join(dict.fromkeys(reasons)),
            )
        state.own.restore(self.model, metrics=False)
        self.initial_epoch = position.epoch
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

    @property
    def _yields_once(self) -> bool:
        """Whether the data is a Python generator, which `fit` has been given itself."""
        assert self._iterator is not None
        return isinstance(self._iterator.data_adapter, GeneratorDataAdapter)

    def begin_epoch(self, epoch: int, callbacks: Any) -> None:
        """Notes the number of an epoch.

        Args:
          epoch: its number, from 0.
          callbacks: those of `fit`.
        """
        self.epoch, self.batch = epoch, 0
        self._in_step = 0
        if self._start is not None:
            # Callbacks that save every N batches count on.
            for callback in callbacks:
                if self._start.position.batch and hasattr(callback, "_last_batch_seen"):
                    callback._last_batch_seen = self._start.position.batch - 1

    def end_epoch(self, epoch: int) -> None:
        """Says that an epoch has ended; what its callbacks save is the beginning of the next."""
        self.epoch, self.batch = epoch + 1, 0
        self._epochs_ended += 1

    def steps(self, of_keras: Iterator) -> Iterator:
        """The steps of an epoch, from the first one that is to be made.

        Args:
          of_keras: all steps, which begin with the number of their first batch. They do not read.
        """
        assert self._iterator is not None
        start = self._begin_steps()
        size = self._iterator.steps_per_execution
        first = self.batch
        # The batches of earlier epochs that came from the same opening.
        earlier = 0 if start is None else start.position.batches - first
        for step in of_keras:
            self._iterator._steps_seen += earlier
            earlier = 0
            if step[0] < first:
                continue
            self._begin_step(step[0], size)
            with events.span("step", f"epoch {self.epoch}, batch {step[0]}"):
                yield step
            self._in_step = 0

    def _begin_steps(self) -> TrainingState | None:
        """Goes to the first batch of the steps that begin.

        Returns:
          Where `fit` goes on from, if these are its first steps.
        """
        assert self._openings is not None
        start, self._start = self._start, None
        self._openings.prepare()
        self.batch = 0 if start is None else start.position.batch
        # Keras has set the metrics to zero.
        if start is not None and self.batch:
            start.own.restore(self.model, metrics=True)
        return start

    def _begin_step(self, batch: int, size: int) -> None:
        """Counts the batches of a step, whose first one is number `batch` of the epoch."""
        assert self._openings is not None
        self.batch = batch + size
        self._openings.batches += size
        self._in_step = size


def rows_in(batches: int, size: int, last: int | None) -> int:
    """Returns the number of rows in some batches, of which the last one may be smaller."""
    return batches * size if last is None else (batches - 1) * size + last


class _Trainings(threading.local):
    """The trainings of this thread: one may begin another in a callback."""

    def __init__(self) -> None:
        self.running: list[Training] = []


_trainings = _Trainings()


@contextlib.contextmanager
def training(started: Training) -> Iterator[Training]:
    """Lets `newest` and `training_of` find a training for the duration of a `with` block."""
    epoch_before = started.initial_epoch
    _trainings.running.append(started)
    try:
        yield started
    finally:
        _trainings.running.remove(started)
        # Else another `fit` of this model would begin at the epoch at which this one went on.
        if started.resumed is not None:
            started.initial_epoch = epoch_before


def newest() -> Training | None:
    """The training that began last in this thread, and has not ended."""
    return _trainings.running[-1] if _trainings.running else None


def training_of(model: Any) -> Training | None:
    """The training of a model, if there is one in this thread and its data is known."""
    for running in reversed(_trainings.running):
        if running.model is model:
            return running if running.reads is not None else None
    return None
