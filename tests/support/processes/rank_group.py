"""The ranks of one multi-process test as seen from the test's own process; see ranks.py."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait as wait_any
from multiprocessing.context import BaseContext
from typing import Any, NoReturn

from support.processes.rank_outcome import Outcome, describe_all
from support.processes.rank_process import Assignment

_TAIL_LINES = 30
_REAP_TIMEOUT = 10.0
_ANY = object()


class Rank:
    """One running rank, which a test can kill, stop and resume."""

    def __init__(self, assignment: Assignment, process: Any, connection: Any) -> None:
        self.assignment = assignment
        self.process = process
        self.connection = connection
        self.reports: list[tuple[str, Any]] = []
        self.ending: dict[str, Any] = {"kind": None, "payload": None, "time": None}
        self.exited_at: float | None = None
        self.hung = ""

    @property
    def pid(self) -> int:
        """The process's id."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """The process has not ended yet; true also of a stopped one."""
        return self.exited_at is None

    def kill(self) -> float:
        """SIGKILLs the rank; returns when (`time.monotonic()`)."""
        return self.send_signal(signal.SIGKILL)

    def stop(self) -> float:
        """SIGSTOPs the rank: it keeps its connections and sends nothing; returns when."""
        return self.send_signal(signal.SIGSTOP)

    def resume(self) -> float:
        """SIGCONTs a rank that was stopped; returns when."""
        return self.send_signal(signal.SIGCONT)

    def send_signal(self, number: signal.Signals) -> float:
        """Sends the process a signal unless it has ended; returns when (`time.monotonic()`)."""
        now = time.monotonic()
        if self.alive:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)
        return now


class RankGroup:
    """All ranks of a test; a context manager that leaves no process behind."""

    def __init__(
        self,
        context: BaseContext,
        main: Callable[..., None],
        assignments: Sequence[Assignment],
    ) -> None:
        self._context = context
        self._main = main
        self._changed = threading.Condition()
        self._barriers: dict[str, set[int]] = {}
        self._started_at = time.monotonic()
        self._listeners: list[tuple[Rank, threading.Thread]] = []  # of former ranks too
        self._ranks = [self._start(assignment) for assignment in assignments]
        for rank in self._ranks:
            self._listen_to(rank)

    def _start(self, assignment: Assignment) -> Rank:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=self._main, args=(assignment, theirs), daemon=True)
        process.start()
        theirs.close()
        return Rank(assignment, process, ours)

    def _listen_to(self, rank: Rank) -> None:
        listener = threading.Thread(target=self._listen, args=(rank,), name="ranks", daemon=True)
        listener.start()
        self._listeners.append((rank, listener))

    def __enter__(self) -> RankGroup:
        return self

    def __exit__(self, *exception: object) -> None:
        for rank, _ in self._listeners:
            rank.kill()
        for rank, listener in self._listeners:
            listener.join(_REAP_TIMEOUT)
            rank.connection.close()
            rank.process.close()

    def __getitem__(self, rank: int) -> Rank:
        return self._ranks[rank]

    def __len__(self) -> int:
        return len(self._ranks)

    def restart(self, rank: int) -> None:
        """Starts a rank again, with the same assignment, once it has ended.

        Its reports start empty; its output is appended.

        Raises:
          AssertionError: it does not end.
        """
        former = self._ranks[rank]
        with self._changed:
            ended = self._changed.wait_for(lambda: not former.alive, _REAP_TIMEOUT)
        assert ended, f"rank {rank} has to end before it can be started again"
        self._ranks[rank] = self._start(former.assignment)
        self._listen_to(self._ranks[rank])

    def send(self, rank: int, key: str, value: Any = None) -> None:
        """Answers `ctx.wait_for(key)` in one rank."""
        with self._changed:
            self._ranks[rank].connection.send(("send", key, value))

    def wait_for(self, rank: int, key: str, value: Any = _ANY, *, timeout: float = 30.0) -> Any:
        """Waits until a rank has said `ctx.report(key, value)`; returns the value.

        Args:
          rank: the rank.
          key: the report's key.
          value: the report's value; by default the first report with this key matches.
          timeout: seconds to wait.

        Raises:
          AssertionError: the rank ended, or the time passed, without such a report. The message
            has the stacks of all running ranks, which may keep this one waiting, and the ends of
            the others; the running ones are killed.
        """
        reporter = self._ranks[rank]

        def found() -> list[Any]:
            return [v for k, v in reporter.reports if k == key and (value is _ANY or v == value)]

        with self._changed:
            self._changed.wait_for(lambda: found() or not reporter.alive, timeout)
            if found():
                return found()[0]
        wanted = repr(key) if value is _ANY else f"{key!r}: {value!r}"
        seen = reporter.reports[-3:]
        if not reporter.alive:
            raise AssertionError(
                f"rank {rank} ended before it reported {wanted}; its last reports: {seen}\n"
                + self._outcome(reporter).describe()
            )
        self.fail(
            range(len(self)),
            f"rank {rank} did not report {wanted} within {timeout:g} s; its last reports: {seen}",
        )

    def wait_until(self, condition: Callable[[], bool], timeout: float, what: str) -> None:
        """Waits until a condition of reports and of ends is true.

        Args:
          condition: is called after each report and each end of a rank.
          timeout: seconds to wait.
          what: the condition in words.

        Raises:
          AssertionError: it was not true in time. The message has the running ranks' stacks; they
            are killed.
        """
        with self._changed:
            if self._changed.wait_for(condition, timeout):
                return
        self.fail(range(len(self)), f"waited {timeout:g} s for {what}")

    def fail(self, chosen: Sequence[int], why: str) -> NoReturn:
        """Fails with the stacks of ranks that run, which are killed, and the ends of others.

        Raises:
          AssertionError: always.
        """
        ranks = [self._ranks[rank] for rank in chosen]
        running = [rank for rank in ranks if rank.alive]
        text = self._abort(running, why)
        ended = [self._outcome(rank) for rank in ranks if rank not in running]
        raise AssertionError(f"{why}\n{describe_all(ended)}{text}")

    def join(
        self, timeout: float, *, only: Sequence[int] | None = None, grace: float | None = None
    ) -> list[Outcome]:
        """Waits for the ranks to end.

        Args:
          timeout: seconds to wait for them.
          only: the ranks to wait for; by default all. Ranks that a test has stopped never end.
          grace: seconds that the others have after one rank has failed; unlimited by default.

        Returns:
          Their outcomes in rank order. With `grace`, ranks stopped by it are among them as `hung`.

        Raises:
          AssertionError: some ranks still run at the timeout. The message has their stacks and the
            outcomes of the others. The running ranks are killed.
        """
        chosen = [self._ranks[rank] for rank in (range(len(self)) if only is None else only)]
        deadline = time.monotonic() + timeout

        def finished() -> bool:
            return not any(rank.alive for rank in chosen)

        def failed() -> bool:
            return any(not rank.alive and not self._outcome(rank).ok for rank in chosen)

        with self._changed:
            self._changed.wait_for(lambda: finished() or (grace is not None and failed()), timeout)
            if not finished() and failed() and grace is not None:
                left = min(grace, deadline - time.monotonic())
                self._changed.wait_for(finished, max(0.0, left))
        hanging = [rank for rank in chosen if rank.alive]
        if hanging and grace is not None and failed():
            self._abort(hanging, f"still running {grace:g} s after the first failure")
        elif hanging:
            text = self._abort(hanging, f"still running after {timeout:g} s")
            ended = [self._outcome(rank) for rank in chosen if rank not in hanging]
            rest = describe_all(ended) if ended else ""
            raise AssertionError(
                f"{len(hanging)} of {len(chosen)} ranks hang; their stacks:\n{text}{rest}"
            )
        return [self._outcome(rank) for rank in chosen]

    def _abort(self, hanging: Sequence[Rank], why: str) -> str:
        """Makes hanging ranks write their stacks and end; returns their described outcomes."""
        for rank in hanging:
            rank.hung = why
            # The rank's fault handler writes the stacks on SIGABRT, then the process ends.
            rank.send_signal(signal.SIGABRT)
            rank.resume()
        with self._changed:
            self._changed.wait_for(lambda: not any(r.alive for r in hanging), _REAP_TIMEOUT)
        for rank in hanging:
            rank.kill()
        with self._changed:
            self._changed.wait_for(lambda: not any(r.alive for r in hanging), _REAP_TIMEOUT)
        return describe_all([self._outcome(rank) for rank in hanging])

    def _listen(self, rank: Rank) -> None:
        """Receives a rank's messages until it has ended."""
        is_open = True
        while rank.alive:
            ready = wait_any([rank.process.sentinel, *([rank.connection] if is_open else [])])
            # The pipe still has messages that the rank sent before it ended.
            while is_open and rank.connection.poll(0):
                try:
                    self._received(rank, rank.connection.recv())
                except (EOFError, OSError):
                    is_open = False
            if rank.process.sentinel in ready:
                rank.process.join(_REAP_TIMEOUT)
                with self._changed:
                    rank.exited_at = time.monotonic()
                    self._changed.notify_all()

    def _received(self, rank: Rank, message: tuple[str, str, Any, float]) -> None:
        kind, key, value, when = message
        with self._changed:
            if kind == "barrier":
                self._arrived(rank, key)
            elif kind == "report":
                rank.reports.append((key, value))
            elif kind in ("result", "failure"):
                rank.ending = {"kind": kind, "payload": value, "time": when}
            self._changed.notify_all()

    def _arrived(self, rank: Rank, key: str) -> None:
        arrived = self._barriers.setdefault(key, set())
        arrived.add(rank.assignment.rank)
        if len(arrived) < len(self):
            return
        del self._barriers[key]
        for other in self._ranks:
            with contextlib.suppress(OSError):  # it has just ended
                other.connection.send(("barrier", key, None))

    def _outcome(self, rank: Rank) -> Outcome:
        failure = rank.ending["payload"] if rank.ending["kind"] == "failure" else {}
        returned = rank.ending["kind"] == "result"
        code = rank.process.exitcode
        stacks = _tail(rank.assignment.stacks, None)
        finished_at = rank.ending["time"] or rank.exited_at or time.monotonic()
        return Outcome(
            rank=rank.assignment.rank,
            size=rank.assignment.size,
            exit_code=code if code is not None and code >= 0 else None,
            signal=signal.Signals(-code) if code is not None and code < 0 else None,
            exception=failure.get("exception"),
            bases=failure.get("bases", ()),
            message=failure.get("message", ""),
            traceback=failure.get("traceback", "") + stacks,
            result=pickle.loads(rank.ending["payload"]) if returned else None,
            output=_tail(rank.assignment.output, _TAIL_LINES),
            finished_at=finished_at,
            elapsed=finished_at - self._started_at,
            hung=rank.hung,
        )


def _tail(path: Any, lines: int | None) -> str:
    """Returns the last lines of a file, or all lines for None; "" if there is no file."""
    if not path.exists():
        return ""
    text = path.read_text(errors="replace").splitlines()
    return "\n".join(text if lines is None else text[-lines:])
