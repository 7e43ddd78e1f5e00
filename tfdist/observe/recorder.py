"""The flight recorder of a task: writes its last operations after a failure, or when asked.

The events are in C++ (`tfdist.ops.trace.events`). A thread of its own writes them, with the
stacks of all Python threads, into the directory `TFDIST_DEBUG_DIR`: the main thread may wait in
C++, or never end a loop. `explain` combines the files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import linecache
import logging
import os
import platform
import select
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, TextIO

from tfdist._compatibility import KERAS, TENSORFLOW, version_of
from tfdist._version import __version__
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.observe import channel, dumps, failures
from tfdist.observe.dumps import Dump, StackFrame, ThreadEntry
from tfdist.observe.failures import FailureNote
from tfdist.observe.timeline.recording import TaskTimeline

if TYPE_CHECKING:
    from tfdist.ops.collectives.communicator import CommunicatorEntry
    from tfdist.ops.trace.events import RecordedEvent

_log = logging.getLogger("tfdist")
_MAX_REASONS = 8
_MAX_TEXT = 1000  # of a reason
# Between tasks, a dump that is younger than this many seconds is young enough.
_YOUNG = 5.0
_FROM_TASK = "asked by "
# Seconds in which the thread may end its last dump.
_CLOSE_TIMEOUT = 5.0


class Recorder:
    """Writes the dumps of one task, until `close`.

    Args:
      cluster: the job and this process's task.
      directory: where the files are; made with mode 0700 if it does not exist.
      elastic: whether the job is elastic: its members survive the loss of others, so that this is
        no reason to write.
      timeline: the timeline that `tfdist timeline` starts and stops; by default a new one.
      restarts: how often this task was started again.

    Raises:
      OSError: the directory cannot be used.
    """

    def __init__(
        self,
        cluster: Cluster,
        directory: Path,
        *,
        elastic: bool = False,
        timeline: TaskTimeline | None = None,
        restarts: int = 0,
    ) -> None:
        self._cluster = cluster
        self._directory = directory
        self._elastic = elastic
        self._restarts = restarts
        self._timeline = timeline or TaskTimeline(cluster, Settings())
        self._name = dumps.slug(cluster.task_name)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._reasons: list[str] = []
        self._failure: FailureNote | None = None
        self._exception: str | None = None
        self._raised_in: list[StackFrame] | None = None
        self._has_finished = False
        self._written_at = float("-inf")
        self._follows = threading.Event()
        self._closed = False
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._versions = _versions()
        self._crash: TextIO | None = None
        self._listener = channel.listen(directory, self._name)
        try:
            self._catch_fatal_signals()
        except BaseException:
            self._listener.close()
            raise
        self._wakeup, self._wake = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="tfdist-recorder", daemon=True)
        self._thread.start()

    def follow_failures(self) -> None:
        """Writes a dump also when a collective or request fails; loads the op library."""
        from tfdist.ops.trace import events

        if not self._follows.is_set():
            events.failure_descriptor()
            self._follows.set()
            self._wake.send(b".")

    def note_failure(self, exception: BaseException) -> None:
        """Notes an exception that may end the program; see `failures`."""
        self._note(failures.note_of(exception, self._cluster.task_name, self._restarts))

    def note_exception(self, exception: BaseException) -> None:
        """Notes an exception that ends the program, and writes a dump."""
        self.note_failure(exception)
        assert self._failure is not None
        self._exception = self._failure.reason
        frames = traceback.walk_tb(exception.__traceback__)
        self._raised_in = [_frame(frame.f_code, line) for frame, line in frames]
        self.write(f"the program ends with {self._exception}")

    def note_exit(self, code: int, exception: BaseException | None) -> None:
        """Notes that the program asks for an exit code that is a failure, and writes a dump.

        Args:
          code: the exit code.
          exception: the exception that it handles meanwhile. Without any the reason is the last
            exception that was noted: a program may log it first.
        """
        if exception is not None:
            self.note_failure(exception)
        note = self._failure or failures.note_of_exit(code, self._cluster.task_name, self._restarts)
        self._note(dataclasses.replace(note, code=code))
        self._exception = note.reason
        self.write(f"the program ends with {self._exception}")

    def _note(self, failure: FailureNote) -> None:
        if os.getpid() != self._pid:
            return
        self._failure = failure
        try:
            failure.write(self._directory)
        except OSError as error:
            _log.warning("%s: cannot note its failure: %s", self._cluster.task_name, error)

    def note_end(self) -> None:
        """Remembers that the program has come to its end without a failure."""
        self._has_finished = True

    def write(self, reason: str) -> Path | None:
        """Writes this task's dump in the place of an earlier one.

        Args:
          reason: is written, too.

        Returns:
          The file; `None` if it could not be written, which is logged, and in a forked child.
        """
        if os.getpid() != self._pid:
            return None
        with self._lock:
            self._reasons = [*self._reasons, reason[:_MAX_TEXT]][-_MAX_REASONS:]
            try:
                path = self._dump().write(self._directory)
            except OSError as error:
                _log.warning("%s: cannot write a dump: %s", self._cluster.task_name, error)
                return None
            self._written_at = time.monotonic()
        return path

    def close(self) -> None:
        """Ends the thread, and removes the socket; may be called again, and in a forked child.

        A failure that the thread has not seen yet is written first.
        """
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._wake.send(b".")
        self._thread.join(_CLOSE_TIMEOUT)
        self._wake.close()
        with contextlib.suppress(OSError):
            channel.remove(self._directory, self._name)
        if self._crash is not None:
            faulthandler.disable()
            self._crash.close()
            self._crash = None
            self._remove_empty_crash()

    def _catch_fatal_signals(self) -> None:
        """Has the stacks written when a signal such as SIGSEGV ends the process."""
        if faulthandler.is_enabled():
            return  # the program has its own place for them
        path = dumps.crash_path_of(self._directory, self._cluster.task_name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        self._crash = open(os.open(path, flags, 0o600), "w")  # noqa: SIM115, closed by `close`
        faulthandler.enable(self._crash, all_threads=True)

    def _remove_empty_crash(self) -> None:
        path = dumps.crash_path_of(self._directory, self._cluster.task_name)
        with contextlib.suppress(OSError):
            if path.stat().st_size == 0:
                path.unlink()

    def _run(self) -> None:
        ready = select.poll()
        ready.register(self._listener, select.POLLIN)
        ready.register(self._wakeup, select.POLLIN)
        failures = -1
        while not self._closed:
            for descriptor, _ in ready.poll():
                try:
                    if descriptor == self._listener.fileno():
                        self._answer()
                    elif descriptor == failures:
                        self._note_failures()
                    else:
                        self._wakeup.recv(16)
                except Exception:
                    # The recorder must not end because of one dump.
                    _log.exception("%s: the flight recorder failed", self._cluster.task_name)
            if self._follows.is_set() and failures < 0:
                from tfdist.ops.trace import events

                failures = events.failure_descriptor()
                if failures >= 0:
                    ready.register(failures, select.POLLIN)
        if failures >= 0:
            self._note_failures()
        self._listener.close()
        self._wakeup.close()

    def _answer(self) -> None:
        with channel.request(self._listener) as asked:
            if asked is None:
                return
            reason, client = asked
            if reason.startswith((channel.START_TIMELINE, channel.STOP_TIMELINE)):
                channel.answer(client, self._switch_timeline(reason))
                return
            young = time.monotonic() - self._written_at < _YOUNG
            if reason.startswith(_FROM_TASK) and young:
                return
            try:
                path = self.write(reason)
            except Exception as error:
                channel.answer(client, f"failed: {type(error).__name__}: {error}")
                raise
            channel.answer(client, "failed: see its log" if path is None else f"written {path}")

    def _switch_timeline(self, request: str) -> str:
        """Starts or stops the timeline of this task; returns the answer."""
        try:
            if request == channel.STOP_TIMELINE:
                return f"stopped {self._timeline.stop()}"
            path = Path(request.removeprefix(channel.START_TIMELINE))
            self._timeline.start(path)
            return f"recording {path}"
        except (OSError, ValueError) as error:
            return f"failed: {error}"

    def _note_failures(self) -> None:
        from tfdist.ops.trace import events

        kinds = events.take_failures()
        if self._elastic:
            kinds.discard("lost")
        if not kinds:
            return
        what = {
            "timeout": "a collective or request has waited longer than its deadline",
            "mismatch": "the ranks disagree on a collective",
            "lost": "a peer was lost",
        }
        reason = "; ".join(what[kind] for kind in sorted(kinds))
        self.write(reason)
        channel.tell_others(
            self._directory, self._name, f"{_FROM_TASK}{self._cluster.task_name}: {reason}"
        )

    def _dump(self) -> Dump:
        cluster = self._cluster
        found, lost = _events()
        communicators = _communicators()
        rank = cluster.rank
        if self._elastic and communicators and cluster.rank is not None:
            rank = communicators[0]["rank"]
        return Dump(
            task=cluster.task_name,
            rank=rank,
            training=[cluster.name_of_rank(rank) for rank in range(cluster.world_size)],
            servers=[f"ps {index}" for index in range(len(cluster.ps))],
            elastic=self._elastic,
            pid=os.getpid(),
            host=socket.gethostname(),
            versions=self._versions,
            wall_time=time.time(),
            steady_ns=time.monotonic_ns(),
            reasons=self._reasons,
            has_finished=self._has_finished,
            exception=self._exception,
            communicators=communicators,
            events=found,
            lost=lost,
            threads=_threads(self._raised_in),
        )


def start(
    cluster: Cluster, settings: Settings, timeline: TaskTimeline | None = None
) -> Recorder | None:
    """Starts the flight recorder of this process's task.

    Args:
      cluster, timeline: as for `Recorder`.
      settings: of this process.

    Returns:
      The recorder; `None` without `TFDIST_DEBUG_DIR`, or if that cannot be used, which is logged.
    """
    if settings.debug_dir is None:
        return None
    try:
        return Recorder(
            cluster,
            Path(settings.debug_dir),
            elastic=settings.elastic is not None,
            timeline=timeline,
            restarts=settings.restarts,
        )
    except OSError as error:
        _log.warning(
            "%s: TFDIST_DEBUG_DIR: cannot use %s: %s; the flight recorder writes no dumps",
            cluster.task_name,
            settings.debug_dir,
            error,
        )
        return None


def _events() -> tuple[list[RecordedEvent], int]:
    """Returns the events of this process, and the number of earlier ones."""
    # To import TensorFlow here would take seconds, and there are no events.
    events = sys.modules.get("tfdist.ops.trace.events")
    if events is None or not events.is_loaded():
        return [], 0
    reading = events.read()
    return reading.events, reading.lost


def _communicators() -> list[CommunicatorEntry]:
    module = sys.modules.get("tfdist.ops.collectives.communicator")
    return [] if module is None else module.descriptions()


def _versions() -> dict[str, str]:
    found = {"tfdist": __version__, "python": platform.python_version()}
    for package, distributions in (("tensorflow", TENSORFLOW), ("keras", KERAS)):
        version = version_of(distributions)
        if version is not None:
            found[package] = version
    return found


def _threads(raised_in: list[StackFrame] | None) -> list[ThreadEntry]:
    """Returns the threads; `raised_in` is where an exception has ended the main one."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    found: list[ThreadEntry] = [
        {
            "name": names.get(ident, f"thread {ident}"),
            "main": ident == main,
            "stack": raised_in if raised_in and ident == main else _stack(frame),
        }
        for ident, frame in sys._current_frames().items()
        if ident != threading.get_ident() or ident == main  # not the recorder's own
    ]
    return sorted(found, key=lambda thread: not thread["main"])


def _stack(innermost: FrameType) -> list[StackFrame]:
    """Returns a thread's frames, the outermost first."""
    stack = []
    frame: FrameType | None = innermost
    while frame is not None:
        stack.append(_frame(frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return stack[::-1]


def _frame(code: CodeType, line: int) -> StackFrame:
    text = ""
    # Another thread may clear the cache of lines at the same time, which it does not expect.
    with contextlib.suppress(Exception):
        text = linecache.getline(code.co_filename, line).strip()
    return {
        "file": code.co_filename,
        "line": line,
        "function": code.co_name,
        "code": text,
    }
