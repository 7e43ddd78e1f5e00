"""The position of an elastic `fit` of tf_keras in its data: newcomers read on there.

tf_keras opens a dataset or a `Sequence` for each epoch, and once more before the first one, which
it drops. It opens arrays and generators once, for all epochs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from tfdist._types import Nested
from tfdist.data.openings import Openings, Target, source_of
from tfdist.data.rows import rows_of
from tfdist.internals.tf_keras import (
    GeneratorDataAdapter,
    KerasSequenceAdapter,
    TensorLikeDataAdapter,
)
from tfdist.keras.hooks.elastic.tf_keras_order import order_of
from tfdist.keras.own_state import OwnState
from tfdist.keras.session.adapter import Distributor, KerasData
from tfdist.keras.session.positions import Positions
from tfdist.keras.session.session import FitSession
from tfdist.keras.training_state import TrainingState, rows_in


class TfKerasPositions(Positions):
    """The position of one `fit` of tf_keras, whose iterators are `DataHandler`s."""

    def __init__(self, session: FitSession) -> None:
        super().__init__(session)
        self._opened: OpenedWhenRead | None = None
        # The number of batches of an epoch, if it is known before the first one has ended.
        self._length: int | None = None

    def open_data(
        self, data: KerasData, strategy: tf.distribute.Strategy, make: Callable[[Distributor], None]
    ) -> None:
        """Takes the training data, which `fit` prepares first."""
        is_trained_on = self.session.data is None
        make(strategy)
        if not is_trained_on:
            return
        dataset = data._dataset

        def made_again() -> tf.data.Dataset:
            read, data._dataset = data._dataset, None
            try:
                make(strategy)
                return data._dataset
            finally:
                data._dataset = read

        source = order_of(data._adapter, made_again)
        if source is None:
            source = source_of(dataset, dataset)
        self.read(data, Openings(source, lambda rest: rest, dataset, lambda: True))

    def read(self, data: KerasData, openings: Openings) -> None:
        """See `Positions`."""
        super().read(data, openings)
        self.session.epoch = data._initial_epoch
        self._length = data._inferred_steps
        if data._adapter.should_recreate_iterator():
            openings.go_to(Target(2))
        data._dataset = self._opened = OpenedWhenRead(openings)

    @property
    def dataset(self) -> tf.data.Dataset:
        """All global batches."""
        assert self._openings is not None
        return self._openings.distributed

    @property
    def rows(self) -> int | None:
        """See `Positions`."""
        adapter = self.session.data._adapter
        if not isinstance(adapter, TensorLikeDataAdapter):
            return rows_of(self.dataset)
        return rows_in(adapter.get_size(), adapter.batch_size(), adapter.partial_batch_size())

    def begin_at(self, epoch: int) -> None:
        """Does nothing: `begins_at` tells where the first epoch begins."""

    @property
    def begins_at(self) -> tuple[int, int]:
        """The first epoch, and the first batch of it, from 0."""
        if self.resumed is None:
            return self.session.data._initial_epoch, 0
        return self.resumed.position.epoch, self.resumed.position.batch

    @property
    def last_batch(self) -> tuple[int, int]:
        """The batch that was trained last: its epoch and its number, both from 0.

        The last one of an epoch of unknown length has the number -1; before the first one the epoch
        is -1.
        """
        position = self.position
        if position.batch:
            return position.epoch, position.batch - 1
        return position.epoch - 1, (self._length or 0) - 1

    def go_on_after(self, epoch: int, batch: int) -> None:
        """Continues after what was the `last_batch`."""
        is_complete = batch < 0 or batch + 1 == self._length
        epoch, batch = (epoch + 1, 0) if is_complete else (epoch, batch + 1)
        data = self.session.data
        ended = max(0, epoch - data._initial_epoch)
        opening, batches, read = ended + 2, batch, ended
        if not data._adapter.should_recreate_iterator():
            opening, batches, read = 1, batch + ended * (self._length or 0), 0
        position = dataclasses.replace(
            self.position,
            epoch=epoch,
            batch=batch,
            opening=opening,
            batches=batches,
            openings_read=read,
            epochs_ended=ended,
            draws=None,  # the backup does not tell
            draws_now=None,
        )
        self.go_on_from(TrainingState(position, OwnState({})))

    def steps(self, of_keras: Iterator) -> Iterator:
        """The steps of an epoch, which begin where `begins_at` tells.

        Args:
          of_keras: the numbers of their first batches.
        """
        self._begin_steps()
        assert self._opened is not None
        self._opened.open()
        for batch in of_keras:
            self._begin_step(batch, self.session.data.step_increment + 1)
            yield batch
            self.session.step_is_done()

    @property
    def _opens_for_epoch(self) -> bool:
        assert self._openings is not None
        return not self._openings.opening or self.session.data._adapter.should_recreate_iterator()

    @property
    def _yields_once(self) -> bool:
        adapter = self.session.data._adapter
        is_sequence = isinstance(adapter, KerasSequenceAdapter)
        return isinstance(adapter, GeneratorDataAdapter) and not is_sequence


class OpenedWhenRead:
    """The data of a `DataHandler`, each iterator of which opens it when it is first read.

    Args:
      openings: the data.
    """

    def __init__(self, openings: Openings) -> None:
        self._openings = openings
        self._newest = _Opening(openings)

    def __iter__(self) -> Iterator:
        self._newest = _Opening(self._openings)
        return self._newest

    @property
    def datasets(self) -> Sequence[tf.data.Dataset]:
        """The datasets with the shuffles of the data."""
        return self._openings.source.datasets

    def open(self) -> None:
        """Opens the data for the newest iterator."""
        self._newest.open()


class _Opening:
    def __init__(self, openings: Openings) -> None:
        self._openings = openings
        self._iterator: Iterator | None = None

    def open(self) -> Iterator:
        if self._iterator is None:
            self._iterator = iter(self._openings)
        return self._iterator

    def __iter__(self) -> Iterator:
        return self

    def __next__(self) -> Nested:
        return next(self.open())
