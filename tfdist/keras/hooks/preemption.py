"""`fit` on SIGTERM: it ends its step, saves, and ends the program; see `tfdist.preemption`."""

from __future__ import annotations

import os
import threading
from typing import Any

import tensorflow as tf
from keras.callbacks import BackupAndRestore, CallbackList
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

from tfdist import ops
from tfdist.elastic.notice import ElasticTraining
from tfdist.job import process
from tfdist.keras.registry import hooks
from tfdist.keras.workers import (
    communicator_of,
    elastic_job_of,
    is_ours,
    rank_of,
    trains_on_servers,
)
from tfdist.preemption.notice import notice
from tfdist.preemption.training import Training

# How a step fails when another worker has ended.
_LOST_PEERS = (tf.errors.UnavailableError, tf.errors.DeadlineExceededError)
# Below TFDIST_CHECKPOINT_DIR, where parameter servers have their snapshots, too.
_FOLDER = "fit"


@hooks(TensorFlowTrainer, "fit")
def stop_at_notice(original, self, *args, **kwargs):
    """SIGTERM ends `fit` after a step that is the last one on all workers."""
    return fit_until_notice(original, Fit, self, *args, **kwargs)


@hooks(CallbackList, "on_train_begin")
def note_callbacks(original, self, logs=None):
    """`fit` knows its callbacks, which save after SIGTERM."""
    note_callbacks_of_fit(self)
    return original(self, logs)


@hooks(CallbackList, "on_epoch_begin")
def note_epoch(original, self, epoch, logs=None):
    """What is saved after SIGTERM has the number of the epoch."""
    note_epoch_of_fit(self, epoch)
    return original(self, epoch, logs)


@hooks(CallbackList, "on_train_batch_end")
def stop_after_step(original, self, batch, logs=None):
    """After the callbacks of a step `fit` may stop."""
    original(self, batch, logs)
    stop_after_step_of_fit(self, batch)


@hooks(CallbackList, "on_test_batch_end")
def stop_after_validation_step(original, self, batch, logs=None):
    """`fit` may stop during validation, where its steps need all workers."""
    original(self, batch, logs)
    fit = current.of(self)
    if fit is not None and fit.validates_together(logs) and fit.training.ends_after_step():
        fit.stop()


@hooks(CallbackList, "on_train_end")
def stop_at_end(original, self, logs=None):
    """Before `fit` ends, and `BackupAndRestore` deletes its backup, all workers may stop."""
    stop_at_end_of_fit(self)
    return original(self, logs)


def fit_until_notice(original: Any, kind: type[Fit], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls `original`, the `fit` of a Keras, and stops it on SIGTERM if a strategy trains."""
    strategy = model.distribute_strategy
    if current.fit is not None or not is_ours(strategy) or _has_unknown_peers(strategy):
        return original(model, *args, **kwargs)
    fit = current.fit = kind(model)
    try:
        with notice.expected():
            return original(model, *args, **kwargs)
    except _LOST_PEERS as error:
        if not fit.training.is_to_end:
            raise
        fit.training.lost_peers(error)
    finally:
        current.fit = None


def _has_unknown_peers(strategy: Any) -> bool:
    """Whether TensorFlow's own collectives (NCCL) connect the workers, which cannot agree then."""
    in_multi_worker_mode = getattr(strategy.extended, "_in_multi_worker_mode", None)
    return (
        in_multi_worker_mode is not None
        and in_multi_worker_mode()
        and getattr(strategy, "communicator", None) is None
    )


def note_callbacks_of_fit(callbacks: Any) -> None:
    """The first list that begins is that of the outermost `fit`."""
    if current.fit is not None and current.fit.callbacks is None:
        current.fit.callbacks = callbacks


def note_epoch_of_fit(callbacks: Any, epoch: int) -> None:
    """Notes the epoch that begins."""
    fit = current.of(callbacks)
    if fit is not None:
        fit.epoch, fit.batch = epoch, -1


def stop_after_step_of_fit(callbacks: Any, batch: int) -> None:
    """Saves and ends the program if the step was the last one; `batch` is its last batch."""
    fit = current.of(callbacks)
    if fit is not None:
        fit.batch = batch
        if fit.training.ends_after_step():
            fit.stop()


def stop_after_round_of_fit(model: Any) -> None:
    """Leaves an elastic job after the round that has ended the steps of an epoch."""
    fit = current.fit
    if fit is not None and fit.model is model and isinstance(fit.training, ElasticTraining):
        if fit.training.ends_after_step():
            fit.stop()


def stop_at_end_of_fit(callbacks: Any) -> None:
    """Saves and ends the program if a worker was told to end after the last step."""
    fit = current.of(callbacks)
    if fit is not None and fit.stops_at_end():
        fit.stop(at_end=True)


class Fit:
    """One `fit` of this process.

    Args:
      model: the model that is trained.

    Attributes:
      callbacks: its `CallbackList`; `None` before the training begins.
      epoch: the number of the current epoch, from 0; `None` before the first one.
      batch: the number of the last batch of this epoch that was trained, from 0; -1 before.
    """

    backup_type: type = BackupAndRestore

    def __init__(self, model: Any) -> None:
        self.model = model
        self.callbacks: Any = None
        self.epoch: int | None = None
        self.batch = -1
        self._communicator = communicator_of(model)
        self._on_servers = trains_on_servers(model.distribute_strategy)
        job, worker = process.current.job, process.current.ps_worker
        elastic_job = elastic_job_of(model.distribute_strategy)
        self.training: Training
        if elastic_job is not None:
            self.training = ElasticTraining(elastic_job)
        elif self._communicator is not None and job is not None:
            self.training = Training(job.stop_watch, 0)
        elif self._on_servers and worker is not None:
            self.training = Training(worker.stop_watch, worker.steps_ahead)
        else:
            self.training = Training(None, None)

    def validates_together(self, logs: Any) -> bool:
        """Whether no worker can be steps ahead of another one in validation.

        Under all-reduce the mean of the workers' logs is computed in each step. With parameter
        servers each worker validates by itself.
        """
        if self._on_servers:
            worker = process.current.ps_worker
            return worker is not None and worker.steps_ahead is None
        return self._communicator is None or bool(logs)

    def stops_at_end(self) -> bool:
        """Whether any worker is to end now, and the chief can save what was trained.

        All workers call it together. Otherwise `fit` ends as usual: what the program does with its
        model now is the best chance to save it.
        """
        is_elastic = isinstance(self.training, ElasticTraining)
        if self._on_servers or is_elastic or self.epoch is None:
            return False
        state = [int(self.training.is_to_end), int(self._backup() is not None)]
        if self._communicator is None:
            return all(state)
        with tf.device("/device:CPU:0"):
            states = tf.constant([state])
            states = ops.all_gather(states, self._communicator, label="the end of fit").numpy()
        return bool(states[:, 0].any() and states[0, 1])

    def stop(self, at_end: bool = False) -> None:
        """Saves and ends the program.

        Args:
          at_end: all epochs have been made.
        """
        epoch = self.epoch
        assert epoch is not None
        # Keras calls callbacks without a result in threads.
        for future in getattr(self.callbacks, "_futures", ()):
            future.result()
        where = "at the end of fit" if at_end else f"in epoch {epoch + 1}"
        where += f" after batch {self.batch + 1}"
        self.training.stop(where, lambda: self._save(epoch + at_end, at_end))

    def _save(self, epoch: int, at_end: bool) -> str:
        """Saves on all workers, since reading some variables needs all of them.

        Args:
          epoch: the first epoch that is not complete.
          at_end: no batch of it was trained.
        """
        backup = self._backup()
        if backup is None:
            if self._snapshots is not None:
                return f"the parameter servers save to {self._snapshots}"
            return (
                "nothing was saved: fit has no BackupAndRestore callback, and "
                "TFDIST_CHECKPOINT_DIR is not set"
            )
        self._save_with(backup, epoch, None if at_end else self.batch)
        by_chief = "" if rank_of(self.model) == 0 else " by the chief"
        return f"saved{by_chief} to {backup.backup_dir}"

    @property
    def _snapshots(self) -> str | None:
        """The directory of the servers that hold the model's variables."""
        worker = process.current.ps_worker
        return worker.config.checkpoint_dir if worker is not None and self._on_servers else None

    def _backup(self) -> Any:
        """The callback that saves; `None` where there is no directory."""
        for callback in self.callbacks.callbacks:
            if isinstance(callback, self.backup_type):
                return callback
        folder = process.current.settings.checkpoint_dir
        if folder is None or self._snapshots is not None:
            return None
        backup = self.backup_type(os.path.join(folder, _FOLDER))
        backup.set_model(self.model)
        return backup

    def _save_with(self, backup: Any, epoch: int, batch: int | None) -> None:
        """Lets the callback save.

        Args:
          backup: has a directory and the model, and may be new.
          epoch: the epoch to go on with.
          batch: the last batch of it that was trained, from 0; `None` before the first one.
        """
        # It counts epochs from 0 again after it was restored, until one ends.
        backup._current_epoch = epoch
        if batch is not None:
            backup._last_batch_seen = batch
        backup._save_model()


class _Current(threading.local):
    """The outermost `fit` of this thread, if a strategy of tfdist trains."""

    fit: Fit | None = None

    def of(self, callbacks: Any) -> Fit | None:
        """The `fit` whose callbacks these are; those of an `evaluate` inside it are its own."""
        return self.fit if self.fit is not None and self.fit.callbacks is callbacks else None


current = _Current()
