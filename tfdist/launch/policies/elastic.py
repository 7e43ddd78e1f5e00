"""Which workers of an elastic job run: starts, restarts and planned changes. Pure: no processes.

A job has a *slot* for each address in its `TF_CONFIG`; a worker runs in a slot.

    FREE --begins, or scaled up--------------------------> RUNNING
    RUNNING --exit 0-------------------------------------> FINISHED
       |--exit 143---------------------------------------> FREE
       |--failed, or no host takes it--------------------> WAITING
       |--failed too often, or without restarts----------> OUT
       \\--told to leave: scaled down, or host is gone----> LEAVING
    WAITING --back-off is over, or a host takes it-------> RUNNING
       \\--scaled down, or another worker has finished----> FREE
    LEAVING --its process has ended----------------------> FREE
       \\--scaled up--------------------------------------> RETURNING
    RETURNING --its process has ended--------------------> RUNNING
       \\--scaled down, or another worker has finished----> LEAVING
    OUT --scaled up--------------------------------------> RUNNING

Nothing is started after a worker has finished.

The *back-off* is the time from a failure to the restart: 1 s, and twice as long after each further
failure that comes soon after the start, up to 30 s. A longer life resets it. A slot that fails
three times in a row, each time soon, is left out. When fewer than the minimum of workers run or
wait for their restart after a failure, the job has failed. A planned leave never fails it.

A slot whose host is left out (`hosts.cooldown`) waits, too: until it finds room on another host, or
until that host is tried again. While no host takes it, it is *held*, and counts for no minimum.

A worker that was started into a running job may find that it has finished meanwhile. So the failure
of such a worker, after another one has finished, is none of the job.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from tfdist.config.elastic import Elastic
from tfdist.errors import Preempted
from tfdist.launch.policies.decisions import EndDecision, TaskEnd, Verdict
from tfdist.state_machine import StateMachine

# The failures that the report lists.
_MAX_SURVIVED = 10


@dataclasses.dataclass(frozen=True, init=False)
class WorkerRange:
    """The numbers of workers of an elastic job: `Elastic` with all its numbers known.

    Args:
      minimum: the number that the job needs, 1 or more.
      maximum: the number of its slots.
      start: the number that it begins with; None means `minimum`.

    Raises:
      ClusterConfigError: unless 1 <= minimum <= start <= maximum.

    Example:
      >>> str(WorkerRange.from_text("2:8"))
      '2:8:2'
    """

    minimum: int
    maximum: int
    start: int

    def __init__(self, minimum: int, maximum: int, start: int | None = None) -> None:
        Elastic(minimum, maximum, start)
        object.__setattr__(self, "minimum", minimum)
        object.__setattr__(self, "maximum", maximum)
        object.__setattr__(self, "start", minimum if start is None else start)

    @classmethod
    def from_text(cls, text: str) -> WorkerRange:
        """Returns the range that "MIN:MAX" or "MIN:MAX:START" names.

        Raises:
          ClusterConfigError: it is no such text, or not 1 <= MIN <= START <= MAX.
        """
        elastic = Elastic.from_text(text, "--workers")
        assert elastic.max_workers is not None
        return cls(elastic.min_workers, elastic.max_workers, elastic.start_workers)

    def __str__(self) -> str:
        return f"{self.minimum}:{self.maximum}:{self.start}"


class ScaleError(ValueError):
    """The job cannot have the number of workers that was asked for; the message says why."""


class SlotState(enum.Enum):
    """The state of a slot; the module's drawing has the transitions."""

    FREE = enum.auto()
    RUNNING = enum.auto()
    # Told to end; its process still runs.
    LEAVING = enum.auto()
    # As LEAVING, but started again once its process has ended.
    RETURNING = enum.auto()
    WAITING = enum.auto()
    FINISHED = enum.auto()
    OUT = enum.auto()


SLOT_TRANSITIONS: Mapping[SlotState, frozenset[SlotState]] = {
    SlotState.FREE: frozenset({SlotState.RUNNING}),
    SlotState.RUNNING: frozenset(set(SlotState) - {SlotState.RUNNING, SlotState.RETURNING}),
    SlotState.WAITING: frozenset({SlotState.RUNNING, SlotState.FREE}),
    SlotState.LEAVING: frozenset({SlotState.FREE, SlotState.RETURNING}),
    SlotState.RETURNING: frozenset({SlotState.RUNNING, SlotState.LEAVING}),
    SlotState.FINISHED: frozenset(),
    SlotState.OUT: frozenset({SlotState.RUNNING}),
}


@dataclasses.dataclass(frozen=True)
class Backoff:
    """When failed workers are started again.

    Attributes:
      first: seconds from the first failure to the restart.
      longest: the most seconds.
      soon: seconds from the start; an earlier failure lengthens the back-off.
      attempts: the number of such failures in a row after which a slot is left out.
    """

    first: float = 1.0
    longest: float = 30.0
    soon: float = 60.0
    attempts: int = 3

    def seconds(self, failures: int) -> float:
        """Returns the seconds to wait after the last of `failures` (1 or more) in a row."""
        # Not 2**failures of any number, which has no limit.
        return min(self.longest, self.first * 2.0 ** min(failures - 1, 60))


@dataclasses.dataclass(frozen=True)
class Changes:
    """The changes that `scale` asks for, as slot numbers.

    Attributes:
      start: to be started now.
      start_later: to be started once their processes, which were told to leave, have ended.
      leave: to be told to leave.
      cancel: not to be started, though they failed or had left and were to be.
    """

    start: tuple[int, ...] = ()
    start_later: tuple[int, ...] = ()
    leave: tuple[int, ...] = ()
    cancel: tuple[int, ...] = ()


class _Slot(StateMachine[SlotState]):
    def __init__(self, number: int) -> None:
        super().__init__(f"slot {number}", SLOT_TRANSITIONS, SlotState.FREE)
        self.forget()

    def forget(self) -> None:
        """Begins anew, without the failures of the former worker."""
        # Whether its worker was started after the beginning, into a running job.
        self.late = False
        # Whether it waits for a host that takes its worker.
        self.held = False
        # Failures in a row; the first may have come after a long life, `soon` ones have not.
        self.failures = 0
        self.soon = 0

    def start_late(self) -> None:
        """Starts a worker into the running job."""
        self.go(SlotState.RUNNING)
        self.late, self.held = True, False

    def hold(self) -> None:
        """Waits for a host that takes its worker."""
        self.go(SlotState.WAITING)
        self.held = True


_WORKS = (SlotState.RUNNING, SlotState.WAITING, SlotState.RETURNING)
_HAS_PROCESS = (SlotState.RUNNING, SlotState.LEAVING, SlotState.RETURNING)


class ElasticPolicy:
    """The slots of an elastic job, and its parameter servers, whose indices follow the slots.

    Args:
      workers: how many there may be.
      max_restarts: the number of restarts after failures, of all slots and servers together.
      backoff: the time until a restart.
      servers: the number of parameter servers.
      final_codes: the exit codes of a worker that fail the job at once.

    Attributes:
      slots_of_failing_host: called with the slot, start and end of a failed worker; returns the
        slots of its host if the host is to be left out.
    """

    def __init__(
        self,
        workers: WorkerRange,
        max_restarts: int = 10,
        backoff: Backoff | None = None,
        servers: int = 0,
        final_codes: Collection[int] = (),
    ) -> None:
        self.workers = workers
        self.restarts_left = max_restarts
        self.slots_of_failing_host: Callable[[int, float, float], Collection[int] | None]
        self.slots_of_failing_host = lambda slot, started, ended: None
        self._backoff = backoff or Backoff()
        self._final_codes = final_codes
        self._servers = range(workers.maximum, workers.maximum + servers)
        self._slots = [_Slot(number) for number in range(workers.maximum)]

    def state(self, slot: int) -> SlotState:
        """Returns what a slot does."""
        return self._slots[slot].state

    @property
    def working(self) -> list[int]:
        """The slots that have a worker, or will have one again without being asked."""
        return self._of(*_WORKS)

    @property
    def awaits_start(self) -> bool:
        """Whether a slot waits for its restart."""
        return bool(self._of(SlotState.WAITING))

    @property
    def finished(self) -> bool:
        """Whether a worker has finished: the job is ending, and nothing is started."""
        return bool(self._of(SlotState.FINISHED))

    @property
    def latecomers(self) -> list[int]:
        """The running slots, if a worker has finished and all that run were started later.

        They may wait for members that are gone.
        """
        running = self._of(*_HAS_PROCESS)
        are_late = self.finished and all(self._slots[slot].late for slot in running)
        return running if are_late else []

    @property
    def is_done(self) -> bool:
        """Whether no worker runs, and none will."""
        return not self._of(*_HAS_PROCESS, SlotState.WAITING)

    @property
    def is_ending(self) -> bool:
        """Whether nothing is started any more: a worker has finished, or all have left."""
        return self.finished or self.is_done

    def begin(self) -> list[int]:
        """Returns the slots that the job begins with, which count as running, and the servers."""
        first = list(range(self.workers.start))
        for slot in first:
            self._slots[slot].go(SlotState.RUNNING)
        return [*first, *self._servers]

    def decide(
        self, ends: Sequence[TaskEnd], is_interrupted: bool
    ) -> Iterator[tuple[TaskEnd, EndDecision]]:
        """Decides on the ends of some tasks, the earliest first."""
        # No worker fails because of another. It matters only whether one has finished before.
        for end in sorted(ends, key=lambda end: end.at):
            is_server = end.index in self._servers
            decide = self._server_ended if is_server else self._worker_ended
            yield end, decide(end, is_interrupted)

    def _server_ended(self, end: TaskEnd, is_interrupted: bool) -> EndDecision:
        if end.code == 0 or end.told_to_stop or self.is_done or is_interrupted:
            return EndDecision(Verdict.NOTHING)
        # At once, since the workers wait for it.
        if self.take_restart():
            return EndDecision(Verdict.REPLACE)
        return EndDecision(Verdict.FAIL, reason="no restarts left")

    def _worker_ended(self, end: TaskEnd, is_interrupted: bool) -> EndDecision:
        is_told = self.state(end.index) in (SlotState.LEAVING, SlotState.RETURNING)
        if is_told or end.code == Preempted.EXIT_CODE:
            return EndDecision(Verdict.RETURN if self.left(end.index) else Verdict.LEFT)
        if end.code == 0:
            return EndDecision(Verdict.FINISHED, cancelled=tuple(self.end(end.index)))
        # A signal to the launcher may have reached the workers, too; it decides what follows.
        if is_interrupted:
            return EndDecision(Verdict.NOTHING)
        if end.code in self._final_codes:
            self._slots[end.index].go(SlotState.OUT)
            return EndDecision(Verdict.FAIL, reason="another start would fail too")
        there = self.slots_of_failing_host(end.index, end.started_at, end.at)
        wait = None if there is None else self.move(end.index, there)
        if wait is not None:
            return EndDecision(Verdict.MOVE, wait=wait)
        return self.failed(end.index, end.life)

    def cause(self, title: str, exit: str, life: float, survived: Sequence[str]) -> str:
        """Returns the reason of the job's failure in one line, and what it survived before."""
        cause = f"the job failed because of {title}: {exit}, {life:.1f} s after its start"
        if not survived:
            return cause
        last = survived[-_MAX_SURVIVED:]
        earlier = len(survived) - len(last)
        listed = ", ".join([f"{earlier} others"] * bool(earlier) + list(last))
        return f"{cause}; it had survived the failures of {listed}"

    def restarted(self, slot: int) -> None:
        """Notes that the back-off of a waiting slot is over, and its worker runs again."""
        self._slots[slot].start_late()

    def hold(self, slot: int) -> None:
        """Notes that no host takes a worker that was about to start; its slot waits for one."""
        self._slots[slot].hold()

    @property
    def backing_off(self) -> list[int]:
        """The slots that wait for the end of their back-off."""
        return [slot for slot in self._of(SlotState.WAITING) if not self._slots[slot].held]

    @property
    def not_held(self) -> list[int]:
        """The working slots that wait for no host."""
        return [slot for slot in self.working if not self._slots[slot].held]

    @property
    def held(self) -> list[int]:
        """The slots that wait for a host."""
        return [slot for slot in self._of(SlotState.WAITING) if self._slots[slot].held]

    def move(self, slot: int, there: Collection[int]) -> float | None:
        """Lets the failed worker of a host that is to be left out start elsewhere, or later.

        It is one of the restarts, and the slot's former failures do not count any more.

        Args:
          slot: its slot.
          there: the slots of that host.

        Returns:
          The seconds until then; None if the job needs the host, or has no restarts left: fewer
          than the minimum of workers run, or will run without it.
        """
        assert self.state(slot) is SlotState.RUNNING
        rest = [
            other
            for other in self.not_held
            if other != slot and (other not in there or self.state(other) is SlotState.RUNNING)
        ]
        if self.finished or not self.restarts_left or len(rest) < self.workers.minimum:
            return None
        self.restarts_left -= 1
        # Whether another host has room is not known yet.
        self._slots[slot].forget()
        self._slots[slot].hold()
        return self._backoff.seconds(1)

    def failed(self, slot: int, life: float) -> EndDecision:
        """Decides what follows from the failure of a running worker.

        Args:
          slot: its slot.
          life: seconds from its start to its end.
        """
        found = self._slots[slot]
        assert found.state is SlotState.RUNNING
        soon = life < self._backoff.soon
        found.soon = found.soon + 1 if soon else 0
        found.failures = found.failures + 1 if soon else 1
        if self.finished:
            found.go(SlotState.OUT)
            by = self._of(SlotState.FINISHED)[0]
            verdict = Verdict.TOO_LATE if found.late else Verdict.FAIL_AT_END
            return EndDecision(verdict, reason=f"worker {by} has finished before")
        others = sum(other != slot for other in self.not_held)
        if found.soon >= self._backoff.attempts:
            reason = (
                f"it failed {found.soon} times in a row, each within {self._backoff.soon:g} s of "
                "its start"
            )
        elif not self.restarts_left:
            reason = "no restarts left"
        elif others + 1 >= self.workers.minimum:
            found.go(SlotState.WAITING)
            self.restarts_left -= 1
            return EndDecision(Verdict.RESTART, wait=self._backoff.seconds(found.failures))
        else:
            reason = ""
        found.go(SlotState.OUT)
        if others >= self.workers.minimum:
            return EndDecision(Verdict.LEAVE_OUT, reason=reason)
        few = f"too few workers remain ({others}, expected at least {self.workers.minimum})"
        return EndDecision(Verdict.FAIL, reason=f"{reason}; {few}" if reason else few)

    def take_restart(self) -> bool:
        """Takes one of the restarts, for a task without a slot; returns whether there was one."""
        if not self.restarts_left:
            return False
        self.restarts_left -= 1
        return True

    def left(self, slot: int) -> bool:
        """Notes that a worker has left as planned; returns whether its slot is to start now."""
        returning = self.state(slot) is SlotState.RETURNING
        self._slots[slot].forget()
        if returning:
            self._slots[slot].start_late()
        else:
            self._slots[slot].go(SlotState.FREE)
        return returning

    def release(self, slots: Sequence[int]) -> list[int]:
        """Removes workers whose hosts are gone; returns the workers that must be told."""
        leave = [slot for slot in slots if self.state(slot) is SlotState.RUNNING]
        for slot in leave:
            self._slots[slot].go(SlotState.LEAVING)
        return leave

    def end(self, slot: int) -> list[int]:
        """Notes that a worker has finished; returns the slots that are not started any more."""
        self._slots[slot].go(SlotState.FINISHED)
        cancelled = self._of(SlotState.WAITING, SlotState.RETURNING)
        for other in cancelled:
            self._cancel(other)
        return cancelled

    def scale(self, count: int) -> Changes:
        """Changes the number of workers.

        Args:
          count: the number of workers that run or wait for their restart afterwards.

        Raises:
          ScaleError: the number is outside the job's range, or the job is ending.
        """
        workers = self.workers
        if not workers.minimum <= count <= workers.maximum:
            raise ScaleError(
                f"expected {workers.minimum} to {workers.maximum} workers, as the job was started "
                f"with, received {count}"
            )
        if self.finished:
            by = self._of(SlotState.FINISHED)[0]
            raise ScaleError(f"the job is ending: worker {by} has finished")
        if self.is_ending:
            raise ScaleError("the job is ending: all workers have left")
        working = self.working
        if count < len(working):
            return self._shrink(working[count:])
        # Slots that have failed again and again come last.
        spare = [
            *self._of(SlotState.FREE),
            *self._of(SlotState.LEAVING),
            *self._of(SlotState.OUT),
        ]
        return self._grow(sorted(spare[: count - len(working)]))

    def _grow(self, slots: list[int]) -> Changes:
        later = tuple(slot for slot in slots if self.state(slot) is SlotState.LEAVING)
        now = tuple(slot for slot in slots if slot not in later)
        for slot in later:
            self._slots[slot].go(SlotState.RETURNING)
        for slot in now:
            self._slots[slot].forget()
            self._slots[slot].start_late()
        return Changes(start=now, start_later=later)

    def _shrink(self, slots: list[int]) -> Changes:
        leave = tuple(slot for slot in slots if self.state(slot) is SlotState.RUNNING)
        cancel = tuple(slot for slot in slots if slot not in leave)
        for slot in leave:
            self._slots[slot].go(SlotState.LEAVING)
        for slot in cancel:
            self._cancel(slot)
        return Changes(leave=leave, cancel=cancel)

    def _cancel(self, slot: int) -> None:
        if self.state(slot) is SlotState.RETURNING:
            self._slots[slot].go(SlotState.LEAVING)
        else:
            self._slots[slot].forget()
            self._slots[slot].go(SlotState.FREE)

    def _of(self, *states: SlotState) -> list[int]:
        return [slot for slot, found in enumerate(self._slots) if found.state in states]
