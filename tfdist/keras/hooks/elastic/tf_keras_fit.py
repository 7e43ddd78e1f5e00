"""Elastic training with tf_keras around the steps: beginning and end, and the output.

See `fit`, which does the same for Keras 3.
"""

from __future__ import annotations

from typing import Any

import tf_keras
from tf_keras.callbacks import BackupAndRestore, History, ProgbarLogger
from tf_keras.src.callbacks import CallbackList

from tfdist.keras import training
from tfdist.keras.elastic_state import ElasticFit
from tfdist.keras.hooks.elastic.fit import (
    check_is_member,
    fit_among_members,
    muted,
    result_among_members,
)
from tfdist.keras.hooks.elastic.tf_keras_data import TfKerasTraining
from tfdist.keras.own_state import OwnState
from tfdist.keras.registry import hooks
from tfdist.keras.training import TrainingState
from tfdist.keras.workers import elastic_job_of


@hooks(tf_keras.Model, "fit")
def fit_elastically(original, self, *args, **kwargs):
    """In elastic training a newcomer leaves out what the members have ended.

    It takes what that has left. A worker that the others have left behind becomes a newcomer, if
    its data can go back.
    """
    return fit_among_members(original, History, self, *args, **kwargs)


@hooks(tf_keras.Model, "evaluate")
def evaluate_elastically(original, self, *args, **kwargs):
    """In elastic training a newcomer takes the results that the members have had."""
    return result_among_members(original, "evaluate", self, *args, **kwargs)


@hooks(tf_keras.Model, "predict")
def predict_elastically(original, self, *args, **kwargs):
    """In elastic training a newcomer takes the predictions that the members have had."""
    return result_among_members(original, "predict", self, *args, **kwargs)


@hooks(tf_keras.Model, "train_on_batch")
def train_on_batch_among_members(original, self, *args, **kwargs):
    """In elastic training `train_on_batch` is refused on a worker that has not joined the members.

    It would train alone.
    """
    check_is_member(self)
    return original(self, *args, **kwargs)


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
    of_each_worker = (ProgbarLogger,)

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
