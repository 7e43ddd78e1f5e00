"""The states of a launched job, and the transitions between them.

    RUNNING --the training is done----------------------> LINGERING
       |--a failure, after which all tasks start again--> RESTARTING
       |--a training task ended with exit code 143------> NOTICED
       |--a failure without restarts left---------------> STOPPING
       \\--a signal, or the time limit------------------> STOPPING
    RESTARTING --all tasks have ended-------------------> RUNNING
       \\--a signal, or the time limit------------------> STOPPING
    NOTICED --a signal----------------------------------> STOPPING
       \\--all tasks have ended-------------------------> ENDED
    LINGERING --a failure, or a signal------------------> STOPPING
       \\--all tasks have ended-------------------------> ENDED
    STOPPING --all tasks have ended---------------------> ENDED

In RESTARTING and STOPPING the tasks have a signal, and get SIGKILL later. In NOTICED the training
tasks end by themselves, since another program has told one of them to end. In LINGERING the other
tasks have some time to end. In ENDED the launcher reports, and writes the rest of the output.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from tfdist.state_machine import StateMachine


class JobState(enum.Enum):
    """The state of a job; the module's drawing has the transitions."""

    RUNNING = enum.auto()
    RESTARTING = enum.auto()
    NOTICED = enum.auto()
    LINGERING = enum.auto()
    STOPPING = enum.auto()
    ENDED = enum.auto()


TRANSITIONS: Mapping[JobState, frozenset[JobState]] = {
    JobState.RUNNING: frozenset(
        {JobState.LINGERING, JobState.RESTARTING, JobState.NOTICED, JobState.STOPPING}
    ),
    JobState.RESTARTING: frozenset({JobState.RUNNING, JobState.STOPPING}),
    JobState.NOTICED: frozenset({JobState.STOPPING, JobState.ENDED}),
    JobState.LINGERING: frozenset({JobState.STOPPING, JobState.ENDED}),
    JobState.STOPPING: frozenset({JobState.ENDED}),
    JobState.ENDED: frozenset(),
}


class JobLifecycle(StateMachine[JobState]):
    """The state of one job, which changes as the module's drawing says."""

    def __init__(self) -> None:
        super().__init__("a job", TRANSITIONS, JobState.RUNNING)

    @property
    def is_stopping(self) -> bool:
        """Whether the tasks are ending, by a signal or by a notice; their ends are no failures."""
        return self.state in (JobState.RESTARTING, JobState.NOTICED, JobState.STOPPING)

    @property
    def is_lingering(self) -> bool:
        """Whether the training is done, and other tasks still run."""
        return self.state is JobState.LINGERING

    @property
    def is_restarting(self) -> bool:
        """Whether all tasks start again once they have ended."""
        return self.state is JobState.RESTARTING

    @property
    def has_ended(self) -> bool:
        """Whether no task is left."""
        return self.state is JobState.ENDED
