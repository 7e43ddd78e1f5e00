"""A preemption notice in an elastic job: the worker that has it leaves, and the others continue."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NoReturn

from tfdist.elastic.job import ElasticJob
from tfdist.errors import Preempted
from tfdist.preemption.notice import notice
from tfdist.preemption.training import StoppableSteps, end_as_preempted

_log = logging.getLogger("tfdist.elastic")


class ElasticTraining(StoppableSteps):
    """The steps of one member; the members tell each other of notices within a step.

    Args:
      job: the members.
    """

    def __init__(self, job: ElasticJob) -> None:
        super().__init__(None, None)
        self._job = job

    @property
    def is_to_end(self) -> bool:
        """Whether this process has the notice, or all members stop."""
        return notice.at is not None or self._job.ends

    def ends_after_step(self) -> bool:
        """Whether this member stops after the step that has just ended."""
        return self._job.ends or self._job.leaves

    def stop(self, where: str, save: Callable[[], str]) -> NoReturn:
        """Leaves the job; if all members stop, saves first.

        Raises:
          Preempted: always.
        """
        if self._job.ends:
            super().stop(where, save)
        end_as_preempted(job_ends=False)
        others = self._job.size - 1
        self._job.leave()
        _log.warning(
            "%s: SIGTERM: left the job %s; the other %d workers continue",
            *(self._job.cluster.task_name, where, others),
        )
        raise Preempted
