"""`fit` on SIGTERM: it ends its step, saves, and ends the program; see `tfdist.preemption`."""

from __future__ import annotations

import os

import tensorflow as tf

from tfdist import ops
from tfdist._types import KerasCallback, Logs
from tfdist.data.strategies import workers_of
from tfdist.elastic.notice import ElasticTraining
from tfdist.job import process
from tfdist.keras.session.participant import Participant
from tfdist.keras.session.session import FitSession, Session, is_in_fit_of
from tfdist.keras.workers import (
    communicator_of,
    elastic_job_of,
    is_ours,
    rank_of,
    trains_on_servers,
)
from tfdist.preemption.notice import notice
from tfdist.preemption.saved import NothingSavedError
from tfdist.preemption.training import StoppableSteps

# Below TFDIST_CHECKPOINT_DIR, where parameter servers have their snapshots, too.
_FOLDER = "fit"


class Preemption(Participant[FitSession]):
    """Stops the outermost `fit` of a thread on SIGTERM, if a strategy of tfdist trains.

    All workers stop after the same step.
    """

    def __init__(self, session: FitSession) -> None:
        super().__init__(session)
        strategy = session.strategy
        self._communicator = communicator_of(session.model)
        self._on_servers = trains_on_servers(strategy)
        job, worker = process.current.job, process.current.ps_worker
        elastic_job = elastic_job_of(strategy)
        self._training: StoppableSteps
        if elastic_job is not None:
            self._training = ElasticTraining(elastic_job)
        elif self._communicator is not None and job is not None:
            self._training = StoppableSteps(job.stop_watch, 0)
        elif self._on_servers and worker is not None:
            self._training = StoppableSteps(worker.stop_watch, worker.steps_ahead)
        else:
            self._training = StoppableSteps(None, None)

    @classmethod
    def of(cls, session: Session) -> Preemption | None:
        """Returns the participant, if it takes part."""
        if not isinstance(session, FitSession) or is_in_fit_of(cls):
            return None
        strategy = session.strategy
        return cls(session) if is_ours(strategy) and not _has_unknown_peers(strategy) else None

    def begin_call(self) -> None:
        """SIGTERM does not end the process before the end of a step."""
        self.session.enter(notice.expected())

    def after_step(self, logs: Logs | None) -> None:
        """Stops if the step was the last one."""
        if self._training.ends_after_step():
            self._stop()

    def after_validation_step(self, logs: Logs | None) -> None:
        """Stops during validation, where its steps need all workers."""
        if self._validates_together(logs) and self._training.ends_after_step():
            self._stop()

    def after_round(self) -> None:
        """Leaves an elastic job after the round that has ended the steps of an epoch."""
        if isinstance(self._training, ElasticTraining) and self._training.ends_after_step():
            self._stop()

    def end_fit(self) -> None:
        """Stops before `fit` ends, and `BackupAndRestore` deletes its backup."""
        if self._stops_at_end():
            self._stop(at_end=True)

    def lost(self, error: Exception) -> None:
        """Ends the program if other workers have ended it meanwhile."""
        if self._training.is_to_end:
            self._training.lost_peers(error)

    def _validates_together(self, logs: Logs | None) -> bool:
        """Whether no worker can be steps ahead of another one in validation.

        Under all-reduce the mean of the workers' logs is computed in each step. With parameter
        servers each worker validates by itself.
        """
        if self._on_servers:
            worker = process.current.ps_worker
            return worker is not None and worker.steps_ahead is None
        return self._communicator is None or bool(logs)

    def _stops_at_end(self) -> bool:
        """Whether any worker is to end now, and the chief can save what was trained.

        All workers call it together. Otherwise `fit` ends as usual: the program's own code is the
        best chance to save its model.
        """
        is_elastic = isinstance(self._training, ElasticTraining)
        if self._on_servers or is_elastic or not self.session.has_begun:
            return False
        state = [int(self._training.is_to_end), int(self._backup() is not None)]
        if self._communicator is None:
            return all(state)
        with tf.device("/device:CPU:0"):
            states = tf.constant([state])
            states = ops.all_gather(states, self._communicator, label="the end of fit").numpy()
        return bool(states[:, 0].any() and states[0, 1])

    def _stop(self, at_end: bool = False) -> None:
        """Saves and ends the program.

        Args:
          at_end: all epochs have been made.
        """
        session = self.session
        # Keras calls callbacks without a result in threads.
        for future in getattr(session.callbacks, "_futures", ()):
            future.result()
        where = "at the end of fit" if at_end else f"in epoch {session.epoch + 1}"
        where += f" after batch {session.last_batch + 1}"
        self._training.stop(where, lambda: self._save(None if at_end else session.last_batch))

    def _save(self, batch: int | None) -> str:
        """Saves on all workers, since reading some variables needs all of them.

        Args:
          batch: the last batch of the present epoch that was trained; `None` if none was.
        """
        backup = self._backup()
        if backup is None:
            if self._snapshots is not None:
                return f"the parameter servers save to {self._snapshots}"
            raise NothingSavedError(
                "fit has no BackupAndRestore callback, and TFDIST_CHECKPOINT_DIR is not set"
            )
        self.session.keras.save(backup, self.session.epoch, batch)
        by_chief = "" if rank_of(self.session.model) == 0 else " by the chief"
        return f"saved{by_chief} to {backup.backup_dir}"

    @property
    def _snapshots(self) -> str | None:
        """The directory of the servers that hold the model's variables."""
        worker = process.current.ps_worker
        return worker.config.checkpoint_dir if worker is not None and self._on_servers else None

    def _backup(self) -> KerasCallback | None:
        """The callback that saves; `None` where there is no directory."""
        kind = self.session.keras.backup_type
        for callback in self.session.callbacks.callbacks:
            if isinstance(callback, kind):
                return callback
        folder = process.current.settings.checkpoint_dir
        if folder is None or self._snapshots is not None:
            return None
        backup = kind(os.path.join(folder, _FOLDER))
        backup.set_model(self.session.model)
        return backup


def _has_unknown_peers(strategy: tf.distribute.Strategy) -> bool:
    """Whether TensorFlow's own collectives (NCCL) connect the workers, which cannot agree then."""
    in_multi_worker_mode = getattr(strategy.extended, "_in_multi_worker_mode", None)
    return (
        in_multi_worker_mode is not None and in_multi_worker_mode() and workers_of(strategy) is None
    )
