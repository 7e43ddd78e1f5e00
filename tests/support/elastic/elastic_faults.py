"""Scripts of faults for an elastic `fit`, and what has to be true after them.

    result = suffer(Fit(), [Faults(Fault("kill", 0, "batch end", batch=2))], tmp_path)

The oracle is one plain process with the whole batches. See elastic_training.py for the workers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import secrets
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from support.elastic.elastic_training import SIGNALS, Fit, Go, Result, SelfFault, train, train_alone
from support.processes.ranks import RankGroup, start_ranks
from support.tiers import ENCRYPTED

WORKERS = 4
# Seconds for the recovery from a fault: detection, a new generation, and the start of a new
# process.
TIMEOUT = 120.0
PREEMPTED = 128 + signal.SIGTERM


@dataclasses.dataclass(frozen=True)
class Fault:
    """One fault of one worker.

    Args:
      kind: "kill", "kill with servers", which are started again at once, "stop" or "leave".
      rank: the worker's rank when the epochs begin.
      place: where it comes from inside; "" for a fault from outside, at any moment since the job
        was formed; "founding" for a fault from outside, at any moment since the process was
        started.
      epoch: of the epochs that are permitted then, from 0; only of a fault from inside.
      batch: of the epoch, from 0, or `None` for any; only of a fault from inside.
      delay: seconds since the fault before it; only of one from outside.
    """

    kind: str
    rank: int
    place: str = ""
    epoch: int | None = None
    batch: int | None = None
    delay: float = 0.0


class Faults:
    """Faults that come together.

    Args:
      *faults: faults from outside come in this order.
      epochs: how many epochs the workers train meanwhile.
      restarts: whether ended workers are started again: "at once", "later" or "never";
        "all": later, with all that have ended before.
      kills_stopped: whether stopped workers are killed; else they continue.
      joiner: a fault of the first worker that is started again.
    """

    def __init__(
        self,
        *faults: Fault,
        epochs: int = 2,
        restarts: str = "at once",
        kills_stopped: bool = False,
        joiner: SelfFault | None = None,
    ) -> None:
        self.faults = faults
        self.epochs = epochs
        self.restarts = restarts
        self.kills_stopped = kills_stopped
        self.joiner = joiner

    def __repr__(self) -> str:
        shown = [
            f"{fault.kind} rank {fault.rank} at {fault.place or 'any moment'}"
            + (f" of batch {fault.batch}" if fault.batch is not None else "")
            for fault in self.faults
        ]
        more = ["then kill" if self.kills_stopped else "", "restart " + self.restarts]
        more.append(f"{self.joiner.kind} it at {self.joiner.place}" if self.joiner else "")
        return ", ".join(filter(None, shown + more))


@dataclasses.dataclass
class _Slot:
    """The process that has a slot of the cluster now.

    Attributes:
      faults: how many of all faults came before it was started.
      is_stopped: it cannot run.
      is_doomed: it is to end.
      is_behind: it may end, because its data cannot go back to where the others are.
    """

    faults: int = 0
    is_stopped: bool = False
    is_doomed: bool = False
    is_behind: bool = False


class Course:
    """A `fit` of several workers under a script of faults.

    Args:
      ranks: the processes.
      fit: the `fit`.

    Attributes:
      ranks: the processes.
      epochs: how many the workers may have trained.
      faults: how many there were that may cost a step.
      recoveries: the seconds from faults to the last survivor's next generation, by "kill" and
        "stop", the first of which shows at once.
      joins: the seconds from a newcomer's readiness to its first generation.
      repeated: how many units of work the members have begun again.
    """

    def __init__(self, ranks: RankGroup, fit: Fit) -> None:
        self.ranks = ranks
        self._fit = fit
        # The last ranks are parameter servers.
        self._slots = [_Slot() for _ in range(len(ranks) - fit.servers)]
        self.epochs = 0
        self.faults = 0
        self.recoveries: dict[str, list[float]] = {"kill": [], "stop": []}
        self.joins: list[float] = []
        self.repeated = 0

    def reports(self, slot: int, key: str) -> list[Any]:
        """The values that a slot's process has reported by a key."""
        return [value for found, value in list(self.ranks[slot].reports) if found == key]

    def _world(self, slot: int) -> dict[str, Any] | None:
        worlds = self.reports(slot, "world")
        return worlds[-1] if worlds else None

    def sizes(self, slot: int) -> list[int]:
        """The numbers of members that a worker has seen, one after the other."""
        sizes = [world["size"] for world in self.reports(slot, "world")]
        return [size for size, _ in itertools.groupby(sizes)]

    def members(self) -> list[int]:
        """The slots of the members of the newest generation that can run, by rank."""
        able = [
            slot
            for slot, state in enumerate(self._slots)
            if self.ranks[slot].alive and not state.is_stopped and not state.is_doomed
        ]
        worlds = {slot: world for slot in able if (world := self._world(slot)) is not None}
        newest = max((world["generation"] for world in worlds.values()), default=0)
        found = [slot for slot, world in worlds.items() if world["generation"] == newest]
        return sorted(found, key=lambda slot: worlds[slot]["rank"])

    def _pauses(self, slot: int) -> bool:
        return self.epochs in self.reports(slot, "pauses after")

    def _wait(self, condition: Callable[[], bool], what: str, timeout: float = TIMEOUT) -> None:
        """Waits; fails at once if a worker ends without a fault."""

        def unexpected() -> list[int]:
            return [
                slot
                for slot, state in enumerate(self._slots)
                if not self.ranks[slot].alive and not state.is_doomed and not state.is_behind
            ]

        self.ranks.wait_until(lambda: bool(unexpected()) or condition(), timeout, what)
        if unexpected():
            why = f"workers {unexpected()} ended while the test waited for {what}"
            self.ranks.fail(range(len(self._slots)), why)

    def _is_forming(self, slot: int) -> bool:
        """Whether a member has lost others and waits for the next generation."""
        world = self._world(slot)
        return world is not None and self.reports(slot, "forms")[-1] > world["time"]

    def _await_pauses(self, slots: Callable[[], Sequence[int]], what: str) -> None:
        """Waits until workers pause after the permitted epochs.

        When a worker dies in the last collective of an epoch, some members have its result and
        pause, and others have not. These need a new generation with all of them, so that they get
        another epoch.
        """

        def all_pause() -> bool:
            return all(map(self._pauses, slots()))

        def some_are_needed() -> bool:
            return any(map(self._pauses, slots())) and any(map(self._is_forming, slots()))

        while True:
            goal = f"{what} to pause after epoch {self.epochs}"
            self._wait(lambda: all_pause() or some_are_needed(), goal)
            if all_pause():
                return
            self.epochs += 1
            for slot in slots():
                self._go(slot)

    # The calls of a test.

    def begin(self, faults: Faults) -> None:
        """Starts the training, with faults of the beginning."""
        self.permit(faults, list(range(len(self._slots))))

    def permit(self, faults: Faults, members: Sequence[int] | None = None) -> None:
        """Permits some epochs, lets faults come in them, and waits until all train again."""
        members = self.members() if members is None else members
        first = self.epochs
        self.epochs += faults.epochs
        targets = [members[fault.rank % len(members)] for fault in faults.faults]
        before = {slot: self._recoveries(slot) for slot in members}
        reported = {slot: len(self.reports(slot, "fault")) for slot in members}
        for fault, slot in zip(faults.faults, targets, strict=True):
            self._slots[slot].is_doomed |= fault.kind != "stop"
        for slot in members:
            own = [
                SelfFault(
                    fault.kind,
                    fault.place,
                    None if fault.epoch is None else first + fault.epoch,
                    fault.batch,
                )
                for fault, target in zip(faults.faults, targets, strict=True)
                if target == slot and fault.place not in ("", "founding")
            ]
            self._go(slot, tuple(own))
        began = [
            self._strike(fault, slot, reported[slot])
            for fault, slot in zip(faults.faults, targets, strict=True)
        ]
        if any(fault.kind == "kill with servers" for fault in faults.faults):
            for server in range(len(self._slots), len(self.ranks)):
                self._wait(lambda rank=server: not self.ranks[rank].alive, "the server's end")
                self.ranks.restart(server)
        stopped = [
            slot for fault, slot in zip(faults.faults, targets, strict=True) if fault.kind == "stop"
        ]
        ended = [slot for slot in dict.fromkeys(targets) if slot not in stopped]
        self._await_ends(faults, ended, members)
        for fault, slot in zip(faults.faults, targets, strict=True):
            if fault.kind == "leave":
                outcome = self.ranks.join(1.0, only=[slot])[0]
                assert outcome.exit_code == PREEMPTED, outcome.describe()
        joiners = [faults.joiner, *[None] * len(ended)]
        if faults.restarts == "at once":
            self._restart(ended, joiners)
        survivors = [slot for slot in members if slot not in targets]
        self._await_pauses(lambda: survivors, f"{faults}: the survivors")
        kind = "stop" if any(fault.kind == "stop" for fault in faults.faults) else "kill"
        self._note(kind, survivors, [when for when in began if when is not None])
        again = [self._recoveries(slot) - before[slot] for slot in survivors]
        allowed = sum(when is not None for when in began) + (faults.joiner is not None)
        assert max(again, default=0) <= allowed, (
            f"{faults}: expected at most {allowed} units of work to begin again, received {again}"
        )
        self.repeated += max(again, default=0)
        for slot in stopped:
            if faults.kills_stopped:
                self._slots[slot].is_doomed = True
                self.ranks[slot].kill()
            else:
                self._slots[slot].is_stopped = False
                self._slots[slot].is_behind = self._fit.data == "dataset"
                self.ranks[slot].resume()
        if faults.kills_stopped:
            ended += stopped
            self._wait(
                lambda: not any(self.ranks[slot].alive for slot in stopped), f"{faults}: the end"
            )
        if faults.restarts == "all":
            ended = [slot for slot in range(len(self._slots)) if not self.ranks[slot].alive]
            self._restart(ended, [None] * len(ended))
        elif faults.restarts == "later" or (faults.kills_stopped and faults.restarts != "never"):
            again = stopped if faults.restarts == "at once" else ended
            self._restart(again, joiners)
        self._gather(faults)

    def _await_ends(self, faults: Faults, slots: Sequence[int], members: Sequence[int]) -> None:
        """Waits for ends; a worker that is told to leave may first need another step."""

        def have_ended_or_pause() -> bool:
            return all(not self.ranks[slot].alive or self._pauses(slot) for slot in slots)

        deadline = time.monotonic() + TIMEOUT
        while True:
            self._wait(have_ended_or_pause, f"{faults}: the end")
            alive = [slot for slot in slots if self.ranks[slot].alive]
            if not alive:
                return
            if time.monotonic() > deadline:
                self.ranks.fail(range(len(self._slots)), f"{faults}: workers {alive} did not end")
            self.epochs += 1
            for slot in members:
                self._go(slot)

    def _strike(self, fault: Fault, slot: int, before: int) -> float | None:
        """Waits for a fault, or inflicts it; returns when it came, if it may cost a step.

        Args:
          fault: the fault.
          slot: the worker that suffers it.
          before: the number of faults from inside that the worker had reported before.
        """
        state = self._slots[slot]
        if fault.place in ("", "founding"):
            if not fault.place:
                self._wait(lambda: self._world(slot) is not None, f"{fault}: the founding")
            time.sleep(fault.delay)
            when = self.ranks[slot].send_signal(SIGNALS[fault.kind])
        else:
            # A stopped worker has reported that fault before.
            self._wait(lambda: len(self.reports(slot, "fault")) > before, f"{fault}")
            when = self.reports(slot, "fault")[-1][1]
        state.is_stopped |= fault.kind == "stop"
        self.faults += fault.kind != "leave"
        return when if fault.kind != "leave" else None

    def _recoveries(self, slot: int) -> int:
        world = self._world(slot)
        return 0 if world is None else world["recoveries"]

    def _note(self, kind: str, survivors: Sequence[int], began: Sequence[float]) -> None:
        """Notes the seconds from the last fault to the last survivor's next generation."""
        if not began:
            return
        ends = [
            min(times)
            for slot in survivors
            if (
                times := [
                    world["time"]
                    for world in self.reports(slot, "world")
                    if world["time"] > max(began)
                ]
            )
        ]
        if ends:
            self.recoveries[kind].append(max(ends) - max(began))

    def _restart(self, slots: Sequence[int], joiners: Sequence[SelfFault | None]) -> None:
        for slot, fault in zip(slots, joiners, strict=False):
            self.ranks.restart(slot)
            self._slots[slot] = _Slot(self.faults, is_doomed=fault is not None)
            self._go(slot, () if fault is None else (fault,))

    def _go(self, slot: int, faults: tuple[SelfFault, ...] = (), ends: bool = False) -> None:
        with contextlib.suppress(OSError):  # it has just ended
            self.ranks.send(slot, "go", Go(self.epochs, faults, ends))

    def _gather(self, faults: Faults) -> None:
        """Permits epochs, one by one, until all that can run have joined."""
        deadline = time.monotonic() + TIMEOUT
        restarted = [slot for slot in range(len(self._slots)) if self._world(slot) is None]
        while True:
            # A joiner's fault.
            doomed = [
                slot
                for slot, state in enumerate(self._slots)
                if state.is_doomed and not self.ranks[slot].alive
            ]
            if faults.joiner is not None and faults.restarts != "never" and doomed:
                self.faults += 1
                self._restart(doomed, [None] * len(doomed))
            behind = [
                slot
                for slot, state in enumerate(self._slots)
                if state.is_behind and not self.ranks[slot].alive
            ]
            for outcome in self.ranks.join(1.0, only=behind):
                assert outcome.exception == "LeftBehindError", outcome.describe()
            self._restart(behind, [None] * len(behind))
            able = [slot for slot in range(len(self._slots)) if self.ranks[slot].alive]
            absent = [slot for slot in able if slot not in self.members()]
            members = self.members()
            if not absent and all(map(self._pauses, members)):
                self._note_joins(restarted)
                return
            if time.monotonic() > deadline:
                self.ranks.fail(
                    range(len(self._slots)), f"{faults}: workers {absent} did not join the others"
                )
            if not absent:
                self._await_pauses(self.members, f"{faults}: all")
                continue
            self._wait(
                functools.partial(self._are_ready, absent),
                f"{faults}: workers {absent} to be ready",
            )
            self.epochs += 1
            for slot in able:
                self._go(slot)
            self._await_pauses(self.members, f"{faults}: all that could join")

    def _note_joins(self, slots: Sequence[int]) -> None:
        """Notes the seconds from the readiness of new processes to their first generation."""
        for slot in slots:
            (first, *_), (ready, *_) = self.reports(slot, "world"), self.reports(slot, "forms")
            self.joins.append(first["time"] - ready)

    def _are_ready(self, slots: Sequence[int]) -> bool:
        """Whether processes wait to join, or have ended."""
        return all(self.reports(slot, "forms") or not self.ranks[slot].alive for slot in slots)

    def end(self) -> dict[int, Result]:
        """Ends the training; returns the workers' results by slot."""
        members = self.members()
        for slot in members:
            self._go(slot, ends=True)
        outcomes = self.ranks.join(TIMEOUT, only=members)
        failed = [outcome for outcome in outcomes if not outcome.ok]
        assert not failed, "\n".join(outcome.describe() for outcome in failed)
        servers = range(len(self._slots), len(self.ranks))
        for outcome in self.ranks.join(TIMEOUT, only=list(servers)):
            assert outcome.exit_code == 0, outcome.describe()
        for slot, outcome in zip(members, outcomes, strict=True):
            lived = self.faults - self._slots[slot].faults
            assert outcome.result.recoveries <= lived, (
                f"expected worker {slot} to make at most {lived} steps again, received "
                f"{outcome.result.recoveries}\n{outcome.describe()}"
            )
        return {slot: outcome.result for slot, outcome in zip(members, outcomes, strict=True)}


def _encryption() -> dict[str, str]:
    """Variables of tasks that encrypt all connections, of which none is shared memory."""
    secret = secrets.token_hex(16)
    return {"TFDIST_TLS": "secret", "TFDIST_SECRET": secret, "TFDIST_PEER_MEMORY": "0"}


@contextlib.contextmanager
def running(
    fit: Fit,
    folder: Path | None,
    workers: int = WORKERS,
    limits: str = "",
    encrypts: bool = ENCRYPTED,
) -> Iterator[Course]:
    """Starts the workers of a `fit`."""
    env = {"TFDIST_ELASTIC": limits or f"1:{workers}", "TFDIST_RENDEZVOUS_TIMEOUT": "60"}
    env |= _encryption() if encrypts else {}
    roles = ["worker"] * workers + ["ps"] * fit.servers
    with start_ranks(
        train, len(roles), args=(fit,), env=env, tmp_path=folder, roles=roles
    ) as ranks:
        yield Course(ranks, fit)


def suffer(
    fit: Fit,
    script: Sequence[Faults],
    folder: Path,
    workers: int = WORKERS,
    limits: str = "",
    encrypts: bool = ENCRYPTED,
) -> tuple[Course, dict[int, Result]]:
    """Runs a `fit` under a script of faults, whose first faults come at its beginning.

    Args:
      fit: the `fit`.
      script: the faults.
      folder: for the workers' files.
      workers: how many processes there are.
      limits: `TFDIST_ELASTIC`; by default any number of workers, which all form the job.
      encrypts: whether all connections are within TLS, each process with a certificate of its own.

    Returns:
      The course, and the results of the workers that are left, by slot.
    """
    with running(fit, folder, workers, limits, encrypts) as course:
        course.begin(script[0])
        for faults in script[1:]:
            course.permit(faults)
        return course, course.end()


@functools.cache
def _alone(fit: Fit, epochs: int) -> list[Result]:
    with start_ranks(train_alone, 1, args=(fit, epochs)) as ranks:
        (outcome,) = ranks.join(TIMEOUT + epochs)
    assert outcome.ok, outcome.describe()
    return outcome.result


def alone(fit: Fit, epochs: int) -> Result:
    """The result of some epochs in one plain process."""
    fit = Fit(fit.model, fit.data, fit.dtype, fit.validates, library=fit.library, clips=fit.clips)
    # A longer training has the results of shorter ones.
    return _alone(fit, 32 * -(-epochs // 32))[epochs - 1]


def undisturbed(fit: Fit, epochs: int, workers: int = WORKERS) -> tuple[float, dict[int, Result]]:
    """The distance of a `fit` of several workers without faults, and their results."""
    with running(fit, None, workers) as course:
        course.begin(Faults(epochs=1))
        while course.epochs < epochs:
            course.permit(Faults(epochs=min(20, epochs - course.epochs)))
        results = course.end()
    return max(distance(result, alone(fit, epochs)) for result in results.values()), results


def distance(received: Result, expected: Result) -> float:
    """The largest difference of weights and of the optimizer's variables."""
    pairs = itertools.chain(
        zip(received.weights, expected.weights, strict=True),
        zip(received.slots, expected.slots, strict=True),
    )
    return max(float(np.max(np.abs(a - b))) for a, b in pairs if a.size)


def _differing(results: dict[int, Result], expected: Result, tolerance: float) -> dict[int, int]:
    """The first epoch whose logs differ, by slot."""
    found: dict[int, int] = {}
    for slot, result in results.items():
        for epoch, logs in sorted(result.logs.items()):
            pairs = [(value, expected.logs[epoch][name]) for name, value in logs.items()]
            if any(abs(value - other) > tolerance for value, other in pairs):
                found.setdefault(slot, epoch)
    return found


def check(
    fit: Fit,
    course: Course,
    results: dict[int, Result],
    *,
    tolerance: float = 1e-10,
    of_logs: float = 1e-8,
) -> None:
    """Asserts that the faults have left no trace, and that no worker has traced a step again."""
    assert results
    expected = alone(fit, course.epochs)
    logs = expected.logs[course.epochs - 1]
    distances = {slot: distance(result, expected) for slot, result in results.items()}
    assert max(distances.values()) <= tolerance, (
        f"expected at most {tolerance} after {course.epochs} epochs, received {distances}; logs "
        f"differ from these epochs on: {_differing(results, expected, of_logs)}"
    )
    for slot, result in results.items():
        assert result.units == fit.units(course.epochs), (slot, result.units)
        assert result.traces == 1, (slot, result.traces)
        own = result.logs[course.epochs - 1]
        assert own.keys() == logs.keys(), (slot, own, logs)
        for name, value in logs.items():
            assert abs(own[name] - value) <= of_logs, (slot, name, own[name], value)
