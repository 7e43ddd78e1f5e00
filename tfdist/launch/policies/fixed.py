"""The decisions of a job of a fixed number of tasks. Pure: no processes.

| The task ended with | and | Consequence |
|---|---|---|
| exit code 0 | | the job is done when all training tasks have |
| exit code 143 | it trains | the others end by themselves; no failure |
| exit code 143 | it does not train | a failure, unless a training task ends with 143 soon |
| another code, or a signal | restarts are left | a restart: see below |
| another code, or a signal | no restarts are left | the job has failed |

A failed task starts again alone if it does not train, or if there are parameter servers, which keep
the variables. Else all start again, since workers cannot replace a lost one. A parameter server or
data task that fails after the training does not start again: nothing needs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tfdist.errors import Preempted
from tfdist.launch.policies.decisions import EndDecision, TaskEnd, TaskRole, Verdict


class FixedPolicy:
    """Decides for a job whose tasks all start at once.

    Args:
      roles: the purpose of each task.
      restarts: the number of failures that lead to a restart.
      replaces: a task can start again alone; without it, a restart is always of all.

    Example:
      >>> policy = FixedPolicy([TaskRole(trains=True)] * 2, restarts=1)
      >>> policy.begin()
      [0, 1]
      >>> [decision.verdict.name for _, decision in policy.decide([TaskEnd(1, code=3)], False)]
      ['RESTART_ALL']
    """

    def __init__(
        self, roles: Sequence[TaskRole], restarts: int = 0, *, replaces: bool = True
    ) -> None:
        self._roles = list(roles)
        self._restarts = restarts
        self.restarts_left = restarts
        self._replaces = replaces
        self._has_servers = any(role.serves for role in roles)
        # The training tasks that have ended with exit code 0.
        self._finished: set[int] = set()

    @property
    def is_done(self) -> bool:
        """Whether all training tasks have ended with exit code 0."""
        training = {index for index, role in enumerate(self._roles) if role.trains}
        return self._finished == training

    @property
    def awaits_start(self) -> bool:
        """Whether a task will start again without being asked: each restart is at once."""
        return False

    def begin(self) -> list[int]:
        """Returns all tasks; they run from now."""
        self._finished = set()
        return list(range(len(self._roles)))

    def decide(
        self, ends: Sequence[TaskEnd], is_interrupted: bool
    ) -> Iterator[tuple[TaskEnd, EndDecision]]:
        """Decides on the ends of some tasks, the likely cause first."""
        for end in ends:
            if end.code == 0 and self._roles[end.index].trains:
                self._finished.add(end.index)
        # A task that a signal ended is more likely to be the cause than a task with an exit code:
        # peers of a dead task notice its death and exit by themselves.
        for end in sorted(ends, key=lambda end: end.code >= 0):
            yield end, self._decide(end, is_interrupted)

    def _decide(self, end: TaskEnd, is_interrupted: bool) -> EndDecision:
        if end.code == 0 or end.told_to_stop:
            return EndDecision(Verdict.NOTHING)
        role = self._roles[end.index]
        if end.code == Preempted.EXIT_CODE and not end.alone:
            return EndDecision(Verdict.NOTICED if role.trains else Verdict.AWAIT_NOTICE)
        is_needed = not ((role.serves or role.prepares_data) and self.is_done)
        if self.restarts_left and is_needed and not is_interrupted:
            self.restarts_left -= 1
            is_alone = self._replaces and (self._has_servers or not role.trains)
            return EndDecision(Verdict.REPLACE if is_alone else Verdict.RESTART_ALL)
        none_left = self._restarts and not self.restarts_left
        return EndDecision(Verdict.FAIL, reason="no restarts left" if none_left else "")

    def cause(self, title: str, exit: str, life: float, survived: Sequence[str]) -> str:
        """Returns the reason of the job's failure in one line; the restarts are not listed."""
        return f"{title} failed first: {exit}, after {life:.1f} s"
