"""The ranks of one multi-process test as seen from the test's own process; see ranks.py."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait as wait_any
from multiprocessing.context import BaseContext
from typing import Any

from rank_outcome import Outcome, describe_all
from rank_process import Assignment

_TAIL_LINES = 30
_REAP_TIMEOUT = 10.0
_ANY = object()


class Rank:
    """One running rank, to be disturbed."""

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
        """The process has not ended yet; true also of one that is stopped."""
        return self.exited_at is None

    def kill(self) -> float:
        """SIGKILLs the rank; returns when (`time.monotonic()`)."""
        return self.send_signal(signal.SIGKILL)

    def stop(self) -> float:
        """SIGSTOPs the rank: it keeps its connections and says nothing more; returns when."""
        return self.send_signal(signal.SIGSTOP)

    def resume(self) -> float:
        """SIGCONTs a rank that was stopped; returns when."""
        return self.send_signal(signal.SIGCONT)

    def send_signal(self, number: signal.Signals) -> float:
        """Sends the process a signal unless it has ended; returns when (`time.monotonic()`)."""
        now = time.monotonic()
        if self.alive:
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
        self._changed = threading.Condition()
        self._barriers: dict[str, set[int]] = {}
        self._started_at = time.monotonic()
        self._ranks = []
        for assignment in assignments:
            ours, theirs = context.Pipe()
            process = context.Process(target=main, args=(assignment, theirs), daemon=True)
            process.start()
            theirs.close()
            self._ranks.append(Rank(assignment, process, ours))
        self._listener = threading.Thread(target=self._listen, name="ranks", daemon=True)
        self._listener.start()

    def __enter__(self) -> RankGroup:
        return self

    def __exit__(self, *exception: object) -> None:
        for rank in self._ranks:
            rank.kill()
        self._listener.join(_REAP_TIMEOUT)
        for rank in self._ranks:
            rank.connection.close()
            rank.process.close()

    def __getitem__(self, rank: int) -> Rank:
        return self._ranks[rank]

    def __len__(self) -> int:
        return len(self._ranks)

    def send(self, rank: int, key: str, value: Any = None) -> None:
        """Answers `ctx.wait_for(key)` in one rank."""
        self._ranks[rank].connection.send(("send", key, value))

    def wait_for(self, rank: int, key: str, value: Any = _ANY, *, timeout: float = 30.0) -> Any:
        """Waits until a rank has said `ctx.report(key, value)`; returns the value.

        Args:
          rank: which rank.
          key: the report's key.
          value: the report's value; by default the first report with this key will do.
          timeout: seconds to wait.

        Raises:
          AssertionError: the rank ended, or the time passed, without such a report.
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
        raise AssertionError(
            f"rank {rank} did not report {wanted} within {timeout:g} s; its last reports: {seen}\n"
            + self._abort([reporter], f"stopped after {timeout:g} s without the report")
        )

    def join(
        self, timeout: float, *, only: Sequence[int] | None = None, grace: float | None = None
    ) -> list[Outcome]:
        """Waits for the ranks to end.

        Args:
          timeout: seconds to wait for them.
          only: the ranks to wait for; by default all. Those that a test has stopped never end.
          grace: once one rank has failed, seconds the others have left; unlimited by default.

        Returns:
          Their outcomes in rank order. With `grace`, ranks stopped by it are among them as `hung`.

        Raises:
          AssertionError: some rank still runs at the timeout. The text holds the stacks of each,
            and how the others ended. The ranks that ran are ended.
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
        """Makes hanging ranks write their stacks and end; returns their outcomes in words."""
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

    def _listen(self) -> None:
        """Receives what the ranks say and notices their ends, until all have ended."""
        sources: dict[Any, Rank] = {}
        for rank in self._ranks:
            sources[rank.connection] = sources[rank.process.sentinel] = rank
        while any(rank.alive for rank in self._ranks):
            for source in wait_any(list(sources)):
                rank = sources[source]
                # What a rank said before it ended is still in the pipe.
                while rank.connection in sources and rank.connection.poll(0):
                    try:
                        self._received(rank, rank.connection.recv())
                    except (EOFError, OSError):
                        del sources[rank.connection]
                if source == rank.process.sentinel:
                    rank.process.join(_REAP_TIMEOUT)
                    sources.pop(rank.connection, None)
                    del sources[source]
                    with self._changed:
                        rank.exited_at = time.monotonic()
                        self._changed.notify_all()

    def _received(self, rank: Rank, message: tuple[str, str, Any, float]) -> None:
        kind, key, value, when = message
        if kind == "barrier":
            arrived = self._barriers.setdefault(key, set())
            arrived.add(rank.assignment.rank)
            if len(arrived) == len(self):
                del self._barriers[key]
                for other in self._ranks:
                    if other.alive:
                        other.connection.send(("barrier", key, None))
        with self._changed:
            if kind == "report":
                rank.reports.append((key, value))
            elif kind in ("result", "failure"):
                rank.ending = {"kind": kind, "payload": value, "time": when}
            self._changed.notify_all()

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
    """The last lines of a file that may not be there; all of them for None."""
    if not path.exists():
        return ""
    text = path.read_text(errors="replace").splitlines()
    return "\n".join(text if lines is None else text[-lines:])
