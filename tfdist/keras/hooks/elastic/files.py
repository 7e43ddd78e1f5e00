"""Elastic training: rank 0 saves, and the next rank 0 saves again what it may not have ended.

See `rank_zero` for what the other members do meanwhile.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras.callbacks import BackupAndRestore, CallbackList, ModelCheckpoint

from tfdist.keras import rank_zero, training
from tfdist.keras.callback import replaced
from tfdist.keras.noted_saves import NotedSaves
from tfdist.keras.registry import hooks
from tfdist.keras.state_file import CompletingSaver
from tfdist.keras.workers import elastic_job_of, local_updates_of, rank_of

_DECIDE = ("on_epoch_begin", "on_epoch_end", "on_train_batch_end", "_should_save_on_batch")


@hooks(ModelCheckpoint, "_save_model")
def save_on_rank_0(original, self, epoch, batch, logs):
    """In elastic training rank 0 alone saves; if it is lost meanwhile, its successor does."""
    if rank_zero.is_left_to_rank_0(self.model):
        _note_save(original, self, epoch, batch, logs)
    else:
        original(self, epoch, batch, logs)
    rank_zero.meet(self)


@hooks(BackupAndRestore, "_save_model")
def back_up_on_rank_0(original, self):
    """In elastic training rank 0 alone saves; if it is lost meanwhile, its successor does."""
    _by_rank_0_here(self, f"a backup in {self.backup_dir}", lambda: original(self))
    rank_zero.meet(self)


@hooks(BackupAndRestore, "on_train_begin")
def restore_on_rank_0(original, self, logs=None):
    """In elastic training rank 0 alone restores the backup, when all members are together."""
    job = elastic_job_of(self.model.distribute_strategy)
    if job is None or getattr(self, "restores_for_all", False):
        original(self, logs)


@hooks(BackupAndRestore, "on_train_end")
def delete_on_rank_0(original, self, logs=None):
    """In elastic training rank 0 deletes the backup when `fit` has ended, or its successor does."""
    if elastic_job_of(self.model.distribute_strategy) is None:
        original(self, logs)
        return
    what = f"the end of the backup in {self.backup_dir}"
    rank_zero.by_rank_0(self.model, what, lambda: original(self, logs))


@hooks(CallbackList, "_configure_async_dispatch")
def call_in_order(original, self, callbacks):
    """A callback that is given alone is called between two steps, as one in a list is.

    Keras looks for such callbacks in lists alone, and calls others in threads beside the steps.
    """
    is_alone = callbacks is not None and not isinstance(callbacks, list | tuple)
    original(self, [callbacks] if is_alone else callbacks)


def _note_save(original: Any, callback: Any, epoch: int, batch: Any, logs: Any) -> None:
    """Lets a `ModelCheckpoint` decide whether to save, and notes what rank 0 saves."""
    saves = NotedSaves(callback.model)
    # A folder that exists: the callback makes the folder of its file, which is rank 0's business.
    name = os.path.join(tempfile.gettempdir(), os.path.basename(callback.filepath))
    with replaced(callback, _model=saves, filepath=name, verbose=0):
        original(callback, epoch, batch, logs)
    if not saves.noted:
        return
    path = callback._get_file_path(epoch, batch, logs)
    state = _state_here(callback)

    def save() -> None:
        saver = callback.model if state is None else CompletingSaver(callback.model, state())
        tf.io.gfile.makedirs(os.path.dirname(path) or ".")
        for method, options in saves.noted:
            getattr(saver, method)(path, **options)

    _by_rank_0_here(callback, path, save)


def _state_here(callback: Any) -> Callable[[], training.TrainingState] | None:
    """Returns a function that returns the training's state at this place."""
    running = training.training_of(callback.model)
    if running is None:
        return None
    if rank_zero.will_meet(callback) is not None:
        return lambda: running.state(of_all=False)
    state = running.state(of_all=False)
    return lambda: state


def _by_rank_0_here(callback: Any, what: str, save: Callable[[], None]) -> None:
    """Lets rank 0 of an elastic job save what a model is now.

    Workers that train alone between two rounds make further steps before they meet. What rank 0
    was saving there is lost with it. In a job that is not elastic all workers save: a value may
    need all of them, and the chief alone keeps its file.
    """
    model = callback.model
    if elastic_job_of(model.distribute_strategy) is None:
        save()
        return
    is_alone = local_updates_of(model.distribute_strategy) is not None
    if not is_alone or rank_zero.will_meet(callback) is not None or rank_of(model) == 0:
        rank_zero.by_rank_0(model, what, save)


rank_zero.meets(ModelCheckpoint, *_DECIDE, "_save_model")
rank_zero.meets(BackupAndRestore, *_DECIDE, "_save_model")
