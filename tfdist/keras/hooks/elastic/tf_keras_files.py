"""Elastic training with tf_keras: rank 0 saves, or its successor does.

See `files`, which does the same for Keras 3.
"""

from __future__ import annotations

import tensorflow as tf
from tf_keras.callbacks import BackupAndRestore, ModelCheckpoint
from tf_keras.src.distribute import distributed_file_utils
from tf_keras.src.distribute.worker_training_state import WorkerTrainingState

from tfdist.data.position import InputPosition
from tfdist.keras import rank_zero, training
from tfdist.keras.callback import replaced
from tfdist.keras.hooks.elastic.tf_keras_data import TfKerasTraining
from tfdist.keras.registry import hooks
from tfdist.keras.tf_keras_backups import Backups
from tfdist.keras.workers import elastic_job_of, term_of


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
    """The backup before the newest one is kept, in case that the newest one is damaged.

    In elastic training each worker may become rank 0, which saves where the others restore.
    """
    original(self, *args, **kwargs)
    if self._enable_save_before_preemption:
        return
    reads, writes = self.read_checkpoint_manager, self.write_checkpoint_manager
    backups = Backups(reads.checkpoint, reads.directory, lambda: term_of(self._model))
    self.read_checkpoint_manager = backups
    if writes is reads or _is_elastic(self):
        self.write_checkpoint_manager = backups
    if _is_elastic(self):
        self.tfdist_position = _SavedPosition()
        reads.checkpoint.tfdist_position = self.tfdist_position


@hooks(WorkerTrainingState, "restore")
def restore_on_rank_0(original, self):
    """In elastic training rank 0 alone restores the backup, when all members are together."""
    if not _is_elastic(self) or getattr(self, "tfdist_restores_for_all", False):
        original(self)


@hooks(WorkerTrainingState, "back_up")
def back_up_on_rank_0(original, self, epoch, batch=0):
    """In elastic training rank 0 alone saves, with the batch that was trained last."""
    if not _is_elastic(self):
        original(self, epoch, batch)
        return

    def back_up() -> None:
        running = training.training_of(self._model)
        at = epoch, batch
        if isinstance(running, TfKerasTraining):
            at = running.last_batch
            self._ckpt_saved_epoch.assign(at[0])
            self._ckpt_saved_batch.assign(at[1])
            self.tfdist_position.value = running.position
        original(self, *at)

    what = f"a backup in {self.read_checkpoint_manager.directory}"
    rank_zero.by_rank_0(self._model, what, back_up)


@hooks(BackupAndRestore, "_backup")
def meet_after_backup(original, self, epoch, batch=0):
    """In elastic training no member goes on before rank 0, or its successor, has saved a backup."""
    original(self, epoch, batch)
    rank_zero.meet(self)


@hooks(WorkerTrainingState, "delete_backup")
def delete_on_rank_0(original, self):
    """In elastic training rank 0 deletes the backup when `fit` has ended, or its successor does."""

    def delete() -> None:
        backups = self.read_checkpoint_manager
        if not (isinstance(backups, Backups) and backups.is_superseded()):
            original(self)

    rank_zero.by_rank_0(self._model, "the end of the backup", delete)


@hooks(ModelCheckpoint, "_save_handler")
def save_on_rank_0(original, self, filepath):
    """In elastic training rank 0 alone saves, since no value needs the other workers."""
    rank_zero.by_rank_0(self.model, filepath, lambda: original(self, filepath))


@hooks(ModelCheckpoint, "_save_model")
def meet_after_save(original, self, epoch, batch, logs):
    """In elastic training no member goes on before rank 0, or its successor, has saved a file."""
    is_silent = rank_zero.is_left_to_rank_0(self.model)
    with replaced(self, verbose=0 if is_silent else self.verbose):
        original(self, epoch, batch, logs)
    rank_zero.meet(self)


@hooks(distributed_file_utils, "write_dirpath")
def write_where_rank_0_does(original, dirpath, strategy):
    """In elastic training no worker has directories of its own, since one alone writes."""
    return dirpath if elastic_job_of(strategy) is not None else original(dirpath, strategy)


@hooks(distributed_file_utils, "remove_temp_dirpath")
def keep_directory(original, dirpath, strategy):
    """In elastic training no worker deletes a directory of its own."""
    if elastic_job_of(strategy) is None:
        original(dirpath, strategy)


_DECIDE = ("on_epoch_begin", "on_epoch_end", "on_train_batch_end")
rank_zero.meets(ModelCheckpoint, *_DECIDE, "_should_save_on_batch", "_save_model")
rank_zero.meets(BackupAndRestore, *_DECIDE, "_backup")
