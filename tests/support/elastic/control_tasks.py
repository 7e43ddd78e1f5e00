"""Several tasks of one job as threads of one process, for tests of the control plane."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent import futures

from support.patience import PATIENCE
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.job.plane import ControlPlane
from tfdist.launch.ports import free_ports

TIMEOUT = 60.0 * PATIENCE


def clusters(size: int, *, chief: bool = False) -> list[Cluster]:
    """Returns the cluster as each of `size` ranks sees it, on free loopback ports."""
    addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(size))
    heads, workers = (addresses[:1], addresses[1:]) if chief else ((), addresses)
    chiefs = [Cluster(heads, workers, task_type="chief")] if chief else []
    return chiefs + [Cluster(heads, workers, task_index=i) for i in range(len(workers))]


def settings(secret: bytes | None = None) -> Settings:
    """Returns settings with a timeout that is short enough for a test."""
    return Settings(secret=secret, rendezvous_timeout=TIMEOUT, exit_timeout=TIMEOUT)


@contextlib.contextmanager
def planes(
    members: list[Cluster], secrets: list[bytes | None] | None = None
) -> Iterator[list[ControlPlane]]:
    """A control plane for each cluster, closed at the end in reverse order."""
    with contextlib.ExitStack() as stack:
        keys = secrets or [None] * len(members)
        yield [
            stack.enter_context(ControlPlane(member, settings(key)))
            for member, key in zip(members, keys, strict=True)
        ]


def data_address(rank: int) -> str:
    """Returns a data address that identifies the rank."""
    return f"10.0.0.{rank}:{5000 + rank}"


class Background:
    """A call in a thread of its own; its outcome is awaited with a deadline."""

    def __init__(self, function: Callable, *args, **kwargs) -> None:
        self._future: futures.Future = futures.Future()

        def run() -> None:
            try:
                self._future.set_result(function(*args, **kwargs))
            except BaseException as error:
                self._future.set_exception(error)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def result(self, timeout: float = TIMEOUT + 40):
        """Returns the call's result or raises its error; TimeoutError if it still runs."""
        if not futures.wait([self._future], timeout).done:
            frame = sys._current_frames().get(self._thread.ident)
            stack = "".join(traceback.format_stack(frame)) if frame else ""
            raise TimeoutError(f"the call still runs after {timeout} s:\n{stack}")
        return self._future.result()

    def done(self) -> bool:
        """Whether the call has ended."""
        return self._future.done()


def meet(members: list[ControlPlane], **kwargs) -> list:
    """Runs a rendezvous of all planes and returns the results by rank."""
    calls = [
        Background(plane.rendezvous, data_address(rank), **kwargs)
        for rank, plane in enumerate(members)
    ]
    return [call.result() for call in calls]


class LogWatch(logging.Handler):
    """Waits for log messages of the control plane."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps the message."""
        with self._changed:
            self.messages.append(record.getMessage())
            self._changed.notify_all()

    def wait_for(self, pattern: str) -> None:
        """Returns once a message matches `pattern`."""
        with self._changed:
            found = self._changed.wait_for(
                lambda: any(re.search(pattern, message) for message in self.messages), TIMEOUT
            )
        assert found, f"no log message matches {pattern!r}: {self.messages}"

    def __enter__(self) -> LogWatch:
        logging.getLogger("tfdist.control").addHandler(self)
        return self

    def __exit__(self, *unused: object) -> None:
        logging.getLogger("tfdist.control").removeHandler(self)
