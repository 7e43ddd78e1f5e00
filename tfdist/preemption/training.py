"""Whether this process's training stops now: after the same step on all workers.

A step is made by all workers together: the call of a `train_function` in `fit`, or the part of a
custom loop between two calls of `stop_requested`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NoReturn

from tfdist.errors import Preempted, brief
from tfdist.job import process
from tfdist.preemption.notice import notice
from tfdist.preemption.saved import NothingSavedError, mark_saved
from tfdist.preemption.stop_watch import StopWatch

_log = logging.getLogger("tfdist")


class StoppableSteps:
    """The steps of this process, and the decision to stop after one.

    Args:
      watch: the agreement with the other workers; `None` without any.
      steps_ahead: how many more steps than this worker another one can have ended when this one
        ends a step; `None` if the workers do not wait for each other, and each stops by itself.
    """

    def __init__(self, watch: StopWatch | None, steps_ahead: int | None) -> None:
        self._watch = watch
        self._steps_ahead = steps_ahead

    @property
    def is_to_end(self) -> bool:
        """Whether this process has the notice, or knows that another worker has it."""
        return notice.at is not None or (
            self._watch is not None and self._watch.last_step is not None
        )

    def ends_after_step(self) -> bool:
        """Counts a step that has just ended; returns whether the training stops here."""
        noticed = notice.at is not None
        if self._watch is None:
            return noticed
        return self._watch.ends_after_step(noticed, self._steps_ahead)

    def stop(self, where: str, save: Callable[[], str]) -> NoReturn:
        """Saves, logs one line, and ends the program.

        Args:
          where: the position in the training, for the line.
          save: saves the state on all workers, and returns what it has saved, for the line; raises
            NothingSavedError if there is no place to save to.

        Raises:
          Preempted: always.
        """
        end_as_preempted()
        began = time.monotonic()
        try:
            saved = save()
            mark_saved()
        except NothingSavedError as why:
            saved = f"nothing was saved: {why}"
        except Exception as error:  # the process ends anyway, and an earlier state may exist
            saved = f"nothing was saved: {type(error).__name__}: {error}"
        now = time.monotonic()
        took = f"{now - began:.2f} s for saving"
        if notice.at is not None:
            took = f"{now - notice.at:.2f} s since the signal, of them {took}"
        _log.warning("%s: %s: stopped %s; %s (%s)", _who(), self._asked_by(), where, saved, took)
        raise Preempted

    def lost_peers(self, error: Exception) -> NoReturn:
        """Ends the program after a step that has failed because other workers have ended.

        Raises:
          Preempted: always.
        """
        end_as_preempted()
        _log.warning(
            "%s: %s: nothing was saved, because the step failed: %s",
            _who(),
            self._asked_by(),
            brief(error),
        )
        raise Preempted from error

    def _asked_by(self) -> str:
        if notice.at is not None or self._watch is None or self._watch.told is None:
            return "SIGTERM"
        cluster = process.cluster("the preemption notice")
        return f"SIGTERM to {cluster.name_of_rank(self._watch.told)}"


def stop_requested() -> bool:
    """Whether a custom training loop stops now, because the job was told to end (SIGTERM).

    Call it at the end of each step, on all workers. From the first call on, SIGTERM does not end
    this process: it, or SIGTERM to another worker, makes this function return True on all workers
    after the same step. The loop then saves its state and raises `tfdist.errors.Preempted`. A step
    must need all workers, as one with an all-reduce does; the workers of asynchronous parameter
    servers stop at the end of their own step instead. It costs no communication before a notice.

    Example:

    ```python
    for batch in dataset:
        train_step(batch)
        if tfdist.stop_requested():
            checkpoint.save("checkpoints/step")
            tfdist.mark_saved()
            raise tfdist.errors.Preempted
    ```
    """
    notice.keep()
    ends = _of_this_process().ends_after_step()
    if ends:
        end_as_preempted()
    return ends


def end_as_preempted(job_ends: bool = True) -> None:
    """Makes this process leave its job as if it had done its work, when it ends.

    Args:
      job_ends: whether all workers end.
    """
    if process.current.is_preempted:
        return
    process.current.is_preempted = True
    notice.keep()
    _tell_servers(stops=job_ends)


def _of_this_process() -> StoppableSteps:
    job, worker = process.current.job, process.current.ps_worker
    if job is not None:
        return StoppableSteps(job.stop_watch, 0)
    if worker is not None:
        return StoppableSteps(worker.stop_watch, worker.steps_ahead)
    return StoppableSteps(None, None)


def _who() -> str:
    if not process.current.is_initialized:
        return "this process"
    return process.cluster("the preemption notice").task_name


def _tell_servers(stops: bool = False) -> None:
    worker = process.current.ps_worker
    if worker is not None:
        worker.tell_of_notice(told=notice.at is not None, stops=stops)


notice.on_arrival = _tell_servers
