"""The training data of an elastic `fit` of tf_keras: newcomers read on where the members are.

tf_keras opens a dataset or a `Sequence` for each epoch, and once more before the first one, which
it drops. It opens arrays and generators once, for all epochs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
import tf_keras
from tf_keras.src.engine import data_adapter
from tf_keras.src.engine.data_adapter import (
    DataHandler,
    GeneratorDataAdapter,
    KerasSequenceAdapter,
    TensorLikeDataAdapter,
)

from tfdist.data.draws import Drawing
from tfdist.data.openings import Openings, Target, source_of
from tfdist.data.rows import rows_of
from tfdist.keras import training
from tfdist.keras.drawing import drawing
from tfdist.keras.hooks.elastic.fit import WholeBatches, agreed
from tfdist.keras.hooks.elastic.tf_keras_order import order_of
from tfdist.keras.hooks.positions import argument
from tfdist.keras.own_state import OwnState
from tfdist.keras.registry import hooks
from tfdist.keras.training import Training, TrainingState, rows_in
from tfdist.keras.workers import elastic_job_of


class TfKerasTraining(Training):
    """One `fit` of one model of tf_keras in an elastic job.

    Args:
      model: the model.
      others: as for `Training`.
    """

    # A model of Keras 3 has it; of tf_keras `begins_at` tells where the first epoch begins.
    initial_epoch: int | None = None

    def __init__(self, model: Any, others: Sequence[Drawing] = ()) -> None:
        super().__init__(model, others)
        self._data: _OpenedWhenRead | None = None
        # The number of batches of an epoch, if it is known before the first one has ended.
        self._length: int | None = None

    def read(self, iterator: Any, openings: Openings) -> None:
        """Says which data is trained on; a `DataHandler`, and the data that it opens."""
        super().read(iterator, openings)
        self.epoch = iterator._initial_epoch
        self._length = iterator._inferred_steps
        if iterator._adapter.should_recreate_iterator():
            openings.go_to(Target(2))
        iterator._dataset = self._data = _OpenedWhenRead(openings)

    @property
    def dataset(self) -> tf.data.Dataset:
        """All global batches."""
        assert self._openings is not None
        return self._openings.distributed

    @property
    def rows(self) -> int | None:
        """The number of rows that are trained on, if it is known before they are read."""
        adapter = self._iterator._adapter
        if not isinstance(adapter, TensorLikeDataAdapter):
            return rows_of(self.dataset)
        return rows_in(adapter.get_size(), adapter.batch_size(), adapter.partial_batch_size())

    @property
    def begins_at(self) -> tuple[int, int]:
        """The first epoch, and the first batch of it, from 0."""
        if self.resumed is None:
            return self._iterator._initial_epoch, 0
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
        """Goes on after what was the `last_batch`."""
        is_complete = batch < 0 or batch + 1 == self._length
        epoch, batch = (epoch + 1, 0) if is_complete else (epoch, batch + 1)
        ended = max(0, epoch - self._iterator._initial_epoch)
        opening, batches, read = ended + 2, batch, ended
        if not self._iterator._adapter.should_recreate_iterator():
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
        assert self._data is not None
        self._data.open()
        for batch in of_keras:
            self._begin_step(batch, self._iterator.step_increment + 1)
            yield batch
            self._in_step = 0

    @property
    def _opens_for_epoch(self) -> bool:
        assert self._openings is not None
        return not self._openings.opening or self._iterator._adapter.should_recreate_iterator()

    @property
    def _yields_once(self) -> bool:
        adapter = self._iterator._adapter
        is_sequence = isinstance(adapter, KerasSequenceAdapter)
        return isinstance(adapter, GeneratorDataAdapter) and not is_sequence


class _OpenedWhenRead:
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

    def __next__(self) -> Any:
        return next(self.open())


@hooks(tf_keras.Model, "fit")
def follow_position(original, self, *args, **kwargs):
    """In elastic training `fit` knows its epoch, and the next batch of its data."""
    if elastic_job_of(self.distribute_strategy) is None:
        return original(self, *args, **kwargs)
    validation = argument(original, "validation_data", self, *args, **kwargs)
    with training.training(TfKerasTraining(self, drawing([validation]))):
        return original(self, *args, **kwargs)


@hooks(DataHandler, "_configure_dataset_and_inferred_steps")
def read_whole_batches(original, self, strategy, x, steps_per_epoch, class_weight, distribute):
    """In elastic training all workers read whole batches; each step cuts them anew."""
    job = elastic_job_of(strategy) if distribute else None
    if job is None:
        original(self, strategy, x, steps_per_epoch, class_weight, distribute)
        return

    def whole() -> tf.data.Dataset:
        original(self, WholeBatches, x, steps_per_epoch, class_weight, distribute)
        WholeBatches.check(self._dataset)
        return self._dataset

    dataset = whole()
    self.tfdist_job = job
    running = training.newest()
    # `fit` prepares its training data first.
    if (
        not isinstance(running, TfKerasTraining)
        or running.model is not self._model
        or running.reads is not None
    ):
        return

    def made_again() -> tf.data.Dataset:
        read, self._dataset = self._dataset, None
        try:
            return whole()
        finally:
            self._dataset = read

    source = order_of(self._adapter, made_again)
    if source is None:
        source = source_of(dataset, dataset)
    running.read(self, Openings(source, lambda rest: rest, dataset, lambda: True))


@hooks(DataHandler, "steps")
def begin_at_batch(original, self):
    """In elastic training the first epoch begins with the next batch of the members."""
    running = training.newest()
    if running is None or running.reads is not self:
        return original(self)
    return running.steps(original(self))


@hooks(DataHandler, "catch_stop_iteration")
def end_together(original, self):
    """In elastic training no member goes on before all have done all steps of an epoch."""
    job = vars(self).get("tfdist_job")
    return original(self) if job is None else agreed(original(self), job, self)


@hooks(tf_keras.Model, "_maybe_load_initial_counters_from_ckpt")
def begin_where_the_members_are(original, self, steps_per_epoch, initial_epoch):
    """In elastic training `fit` begins at the position of rank 0, or of a running job."""
    running = training.training_of(self)
    if not isinstance(running, TfKerasTraining):
        return original(self, steps_per_epoch, initial_epoch)
    return running.begins_at


@hooks(data_adapter, "single_batch_iterator")
def read_whole_batch(original, strategy, *args, **kwargs):
    """In elastic training `train_on_batch` and the like take a whole batch, which a step cuts."""
    whole = elastic_job_of(strategy) is not None
    return original(WholeBatches if whole else strategy, *args, **kwargs)
