"""`fit` knows where it stands, checkpoints hold it, and another `fit` goes on from there."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from keras.callbacks import BackupAndRestore, CallbackList, ModelCheckpoint
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer, TFEpochIterator

from tfdist.data.iterators import plain
from tfdist.data.openings import Openings, source_of
from tfdist.keras import backups, exchange, training
from tfdist.keras.drawing import drawing
from tfdist.keras.noted_saves import NotedSaves
from tfdist.keras.registry import hooks
from tfdist.keras.state_file import CompletingSaver, is_of_later_term, read_state, unpacked
from tfdist.keras.training import Training
from tfdist.keras.workers import rank_of, trains_on_servers
from tfdist.ops.collectives.alone import is_alone


@hooks(TensorFlowTrainer, "fit")
def follow_position(original, self, *args, **kwargs):
    """`fit` knows its epoch, and the next batch of its data."""
    validation = argument(original, "validation_data", self, *args, **kwargs)
    with training.training(Training(self, drawing([validation]))):
        return original(self, *args, **kwargs)


def argument(function: Callable, name: str, *args: Any, **kwargs: Any) -> Any:
    """Returns an argument of a call of a function; `None` if the call has none of that name."""
    try:
        return inspect.signature(function).bind(*args, **kwargs).arguments.get(name)
    except TypeError:  # the call will say so
        return None


@hooks(TFEpochIterator, "__init__")
def count_openings(original, self, distribute_strategy=None, *args, **kwargs):
    """`fit` counts how often it opens its data, and how many batches it reads."""
    original(self, distribute_strategy, *args, **kwargs)
    distributed = self._distributed_dataset
    self._distributed_dataset = plain(distributed)
    running = training.newest()
    # `fit` prepares its training data first.
    if running is None or running.reads is not None:
        return
    dataset, adapter = self._distributed_dataset, self.data_adapter
    openings = getattr(distributed, "openings", None)
    if openings is None:
        # Without a strategy, or with one of TensorFlow's.
        is_whole = isinstance(dataset, tf.data.Dataset)
        openings = Openings(
            source_of(dataset, dataset), lambda rest: rest, dataset, lambda: is_whole
        )
    if hasattr(adapter, "tfdist_source"):
        openings.source = adapter.tfdist_source
        openings.source.spans_epochs = self.steps_per_epoch is not None
    self.tfdist_openings = openings
    running.read(self, openings)


@hooks(TFEpochIterator, "_get_iterator")
def open_at_position(original, self):
    """`fit` opens its training data at its position."""
    opened = original(self)
    openings = getattr(self, "tfdist_openings", None)
    # It may open nothing; see `open_arrays_once_an_epoch`.
    return openings if openings is not None and opened is self._distributed_dataset else opened


@hooks(TFEpochIterator, "_enumerate_iterator")
def begin_at_batch(original, self):
    """The first epoch of a `fit` that goes on begins with its next batch."""
    running = training.newest()
    if running is None or running.reads is not self:
        return original(self)
    return running.steps(original(self))


@hooks(CallbackList, "on_train_begin")
def agree_on_checkpoints(original, self, logs=None):
    """A `ModelCheckpoint` saves the state of all workers only if all workers have it.

    A script may give it to the chief alone. With parameter servers workers come and go.
    """
    running = training.newest()
    if running is not None and not trains_on_servers(running.model.distribute_strategy):
        own = sum(isinstance(callback, ModelCheckpoint) for callback in self.callbacks)
        counts = exchange.gather(running.model, bytes([min(own, 255)]))
        running.checkpoints_of_all = len(set(counts)) == 1
    original(self, logs)


@hooks(CallbackList, "on_epoch_begin")
def note_epoch(original, self, epoch, logs=None):
    """Callbacks that save during an epoch save its number."""
    running = training.newest()
    if running is not None:
        running.begin_epoch(epoch, self.callbacks)
    original(self, epoch, logs)


@hooks(CallbackList, "on_epoch_end")
def note_end_of_epoch(original, self, epoch, logs=None):
    """Callbacks that save after an epoch save the beginning of the next one."""
    running = training.newest()
    if running is not None:
        running.end_epoch(epoch)
    original(self, epoch, logs)


@hooks(TensorFlowTrainer, "_get_metrics_result_or_logs")
def log_metrics_of_finished_epoch(original, self, logs):
    """An epoch that was interrupted after its last batch is logged as any other."""
    running = training.training_of(self)
    if not logs and running is not None and running.resumed is not None:
        return self.get_metrics_result()
    return original(self, logs)


@hooks(BackupAndRestore, "_save_model")
def back_up_position(original, self):
    """A backup is one file, with the position in the data and the replicas' own state.

    The backup before it is kept, as a whole file at each time; Keras copies it.
    """
    if training.training_of(self.model) is None:
        original(self)
        return
    copies, self.double_checkpoint = self.double_checkpoint, False
    former = self._prev_weights_path if rank_of(self.model) == 0 else None
    try:
        with _saving_state(self, lambda running: True, former):
            original(self)
    finally:
        self.double_checkpoint = copies


@hooks(BackupAndRestore, "on_train_end")
def delete_own_backup(original, self, logs=None):
    """A worker that an elastic job has left behind does not delete the backup of the others."""
    if not is_of_later_term(self._weights_path, self.model):
        original(self, logs)


@hooks(ModelCheckpoint, "_save_model")
def save_position(original, self, epoch, batch, logs):
    """A checkpoint's file has the position in the data and the replicas' own state."""
    with _saving_state(self, lambda running: running.checkpoints_of_all):
        original(self, epoch, batch, logs)


@hooks(BackupAndRestore, "on_train_begin")
def choose_backup(original, self, logs=None):
    """`fit` goes on from the backup before the newest one if the newest one is damaged."""
    if rank_of(self.model) == 0:
        metadata = (self._training_metadata_path, self._prev_training_metadata_path)
        backups.choose(self._weights_path, self._prev_weights_path, beside=[metadata])
    original(self, logs)


@hooks(BackupAndRestore, "_load_model")
def go_on_from_backup(original, self):
    """`fit` goes on with the batch after the backup's last one; Keras repeats its epoch."""
    running = training.training_of(self.model)
    if running is None:
        original(self)
        return
    path, metadata = self._weights_path, self._training_metadata_path
    content = read_state(path) if tf.io.gfile.exists(path) else None
    if content is not None:
        # Keras's file of the epoch is not replaced together with that of the weights.
        self._training_metadata_path = f"{metadata}.ignored"
    try:
        original(self)
    finally:
        self._training_metadata_path = metadata
    # With parameter servers, whose values are the chief's backup now, the others have no file.
    content = exchange.broadcast(self.model, content)
    if content is not None:
        state = unpacked(content)
        self._current_epoch = state.position.epoch
        running.go_on_from(state)


@contextlib.contextmanager
def _saving_state(
    callback: Any, of_all: Callable[[Training], bool], former: Any = None
) -> Iterator[None]:
    """Within it a callback saves its model with the training's state, of all workers if told so.

    Args:
      callback: the callback.
      of_all: whether the state is that of all workers.
      former: where the file that is replaced is kept.
    """
    running = training.training_of(callback.model)
    if running is None or isinstance(callback._model, NotedSaves):
        yield
        return
    model = callback._model
    # `OnRankZero` calls the callback on one worker.
    is_of_all = of_all(running) and not is_alone()
    callback._model = CompletingSaver(model, running.state(is_of_all), former)
    try:
        yield
    finally:
        callback._model = model
