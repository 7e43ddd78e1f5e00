"""Elastic training with tf_keras around the steps: beginning and end, files and output.

See `fit`, which does the same for Keras 3.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras
from tf_keras.callbacks import (
    BackupAndRestore,
    History,
    ModelCheckpoint,
    ProgbarLogger,
    TensorBoard,
)
from tf_keras.src.callbacks import CallbackList
from tf_keras.src.distribute.worker_training_state import WorkerTrainingState

from tfdist.data.position import InputPosition
from tfdist.keras import training
from tfdist.keras.elastic_state import ElasticFit
from tfdist.keras.hooks.elastic.fit import (
    WriterOfRank0,
    fit_among_members,
    is_left_to_rank_0,
    muted,
)
from tfdist.keras.hooks.elastic.tf_keras_data import TfKerasTraining
from tfdist.keras.own_state import OwnState
from tfdist.keras.registry import hooks
from tfdist.keras.training import TrainingState
from tfdist.keras.workers import elastic_job_of


@hooks(tf_keras.Model, "fit")
def fit_elastically(original, self, *args, **kwargs):
    """In elastic training a newcomer leaves out what the members have ended.

    A worker that the others have left behind becomes a newcomer, if its data can go back.
    """
    return fit_among_members(original, History, self, *args, **kwargs)


@hooks(CallbackList, "on_train_begin")
def begin_together(original, self, logs=None):
    """`fit` begins with the state of rank 0, or of the members of a running elastic job."""
    original(self, logs)
    running = training.newest()
    if isinstance(running, TfKerasTraining) and running.reads is not None:
        job = elastic_job_of(running.model.distribute_strategy)
        assert job is not None
        _ElasticFit(job, running, self).begin()


@hooks(CallbackList, "on_epoch_begin")
def note_epoch(original, self, epoch, logs=None):
    """In elastic training `fit` knows its epoch."""
    running = training.newest()
    if isinstance(running, TfKerasTraining):
        running.begin_epoch(epoch, self.callbacks)
    original(self, epoch, logs)


@hooks(CallbackList, "on_epoch_end")
def note_end_of_epoch(original, self, epoch, logs=None):
    """In elastic training callbacks that save after an epoch save the beginning of the next one."""
    running = training.newest()
    if isinstance(running, TfKerasTraining):
        running.end_epoch(epoch)
    original(self, epoch, logs)


class _ElasticFit(ElasticFit):
    """One `fit` of tf_keras in an elastic job."""

    backup_type = BackupAndRestore
    of_each_worker = (History, ProgbarLogger)

    def restore_from(self, backup: Any) -> None:
        """See `ElasticFit`; goes on after the batch that was saved."""
        state = backup._training_state
        state.tfdist_restores_for_all = True
        try:
            state.restore()
        finally:
            state.tfdist_restores_for_all = False
        epoch, batch = int(state._ckpt_saved_epoch.numpy()), int(state._ckpt_saved_batch.numpy())
        assert isinstance(self._running, TfKerasTraining)
        if state.tfdist_position.value is not None:
            position = TrainingState(state.tfdist_position.value, OwnState({}))
            self._running.go_on_from(position)
        elif epoch >= 0:  # a backup of an older release
            self._running.go_on_after(epoch, batch)

    def save_to(self, backup: Any) -> None:
        """See `ElasticFit`."""
        position = self._running.position
        backup._training_state.back_up(position.epoch, position.batch)


class _SavedPosition(tf.train.experimental.PythonState):
    """The position in the data, as a part of tf_keras's checkpoints.

    Attributes:
      value: the position; `None` before it was saved or restored.
    """

    def __init__(self) -> None:
        super().__init__()
        self.value: InputPosition | None = None

    def serialize(self) -> str:
        """See `PythonState`."""
        return "" if self.value is None else self.value.to_json()

    def deserialize(self, string_value: bytes) -> None:
        """See `PythonState`."""
        text = tf.compat.as_str(string_value)
        self.value = InputPosition.from_json(text) if text else None


def _is_elastic(state: WorkerTrainingState) -> bool:
    return elastic_job_of(state._model.distribute_strategy) is not None


@hooks(WorkerTrainingState, "__init__")
def save_at_the_users_path(original, self, *args, **kwargs):
    """In elastic training each worker may become rank 0, which saves where the others restore."""
    original(self, *args, **kwargs)
    if _is_elastic(self):
        self.write_checkpoint_manager = self.read_checkpoint_manager
        self.tfdist_position = _SavedPosition()
        self.write_checkpoint_manager.checkpoint.tfdist_position = self.tfdist_position


@hooks(WorkerTrainingState, "restore")
def restore_on_rank_0(original, self):
    """In elastic training rank 0 alone restores the backup, when all members are together."""
    if not _is_elastic(self) or getattr(self, "tfdist_restores_for_all", False):
        original(self)


@hooks(WorkerTrainingState, "back_up")
def back_up_on_rank_0(original, self, epoch, batch=0):
    """In elastic training rank 0 alone saves, with the batch that was trained last."""
    if is_left_to_rank_0(self._model):
        return
    if _is_elastic(self):
        _follow_others(self)
    running = training.training_of(self._model)
    if isinstance(running, TfKerasTraining):
        epoch, batch = running.last_batch
        self._ckpt_saved_epoch.assign(epoch)
        self._ckpt_saved_batch.assign(batch)
        self.tfdist_position.value = running.position
    original(self, epoch, batch)


def _follow_others(state: Any) -> None:
    """Lets a worker that has become rank 0 go on with the numbers of the one before it."""
    manager = state.write_checkpoint_manager
    newest = tf.train.latest_checkpoint(manager.directory)
    if newest is None or newest == manager.latest_checkpoint:
        return
    checkpoint = manager.checkpoint
    checkpoint.save_counter.assign(int(newest.rpartition("-")[2]))
    state.read_checkpoint_manager = state.write_checkpoint_manager = tf.train.CheckpointManager(
        checkpoint, manager.directory, max_to_keep=1
    )


@hooks(WorkerTrainingState, "delete_backup")
def delete_on_rank_0(original, self):
    """In elastic training rank 0 deletes the backup when `fit` has ended."""
    if not is_left_to_rank_0(self._model):
        original(self)


@hooks(ModelCheckpoint, "_save_handler")
def save_on_rank_0(original, self, filepath):
    """In elastic training rank 0 alone saves, since no value needs the other workers."""
    if not is_left_to_rank_0(self.model):
        original(self, filepath)


@hooks(ProgbarLogger, "on_epoch_begin")
def show_epochs_on_rank_0(original, self, epoch, logs=None):
    """In elastic training the progress is that of rank 0, whichever worker that is."""
    with muted(self):
        original(self, epoch, logs)


@hooks(ProgbarLogger, "_batch_update_progbar")
def show_progress_on_rank_0(original, self, batch, logs=None):
    """In elastic training the progress is that of rank 0, whichever worker that is."""
    with muted(self):
        original(self, batch, logs)


@hooks(ProgbarLogger, "_finalize_progbar")
def show_results_on_rank_0(original, self, logs, counter):
    """In elastic training the progress is that of rank 0, whichever worker that is."""
    with muted(self):
        original(self, logs, counter)


@hooks(TensorBoard, "_train_writer")
def write_training_on_rank_0(original):
    """In elastic training the events are those of rank 0, whichever worker that is."""
    return WriterOfRank0(original)


@hooks(TensorBoard, "_val_writer")
def write_validation_on_rank_0(original):
    """In elastic training the events are those of rank 0, whichever worker that is."""
    return WriterOfRank0(original)
