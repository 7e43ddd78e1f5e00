"""The agent of a host: starts and ends that host's tasks for a launcher elsewhere.

ssh starts it. Records arrive by its standard input and leave by its standard output (`records`);
its words for the user go to standard error, which ssh passes on. It has one thread and one loop, as
the launcher. When its input ends, or is silent for too long, the launcher or the connection is
gone: the agent kills its tasks and ends. If it is killed itself, its guard kills them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import select
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tfdist._version import __version__
from tfdist.config.host_environment import login_environment
from tfdist.launch import memory
from tfdist.launch.binding import usable_cpus
from tfdist.launch.debug_directory import DebugDirectory, debug_directory
from tfdist.launch.guarded import Guard, guarded
from tfdist.launch.hosts import records
from tfdist.launch.output import OutputStream, TaskOutput
from tfdist.launch.ports import free_ports
from tfdist.launch.process import LocalProcess, ProcessSpec
from tfdist.observe import failures
from tfdist.observe.failures import FailureNote

_READ_SIZE = 64 * 1024


class RecordSink:
    """Sends one stream of one task to the launcher: a `Sink`.

    Args:
      task: the task's index.
      stream: 0 for its stdout, or for both; 1 for its stderr.
      out: the stream to the launcher.
    """

    def __init__(self, task: int, stream: int, out: OutputStream) -> None:
        self._task = task
        self._stream = stream
        self._out = out

    @property
    def full(self) -> bool:
        return self._out.full

    def take(self, data: bytes) -> None:
        fields = {"task": self._task, "stream": self._stream, "data": records.packed(data)}
        self._out.line(records.line("output", **fields))

    def end(self) -> None:
        """The launcher learns it from the record `closed`."""


class Agent:
    """Carries out the launcher's records.

    Args:
      source: the descriptor that the launcher's records arrive at.
      out: the stream to the launcher.
      guard: ends the tasks if this process is killed.
      directories: makes directories that end with the agent, for variables that name one.
      succeeded: called if the job has ended well.
    """

    def __init__(
        self,
        source: int,
        out: OutputStream,
        guard: Guard,
        directories: Callable[[str], str],
        succeeded: Callable[[], None] = lambda: None,
    ) -> None:
        self._source = source
        self._out = out
        self._guard = guard
        self._directories = directories
        self._succeeded = succeeded
        self._reader = records.RecordStream()
        self._processes: dict[int, LocalProcess] = {}
        self._reading: list[TaskOutput] = []
        self._told: set[int] = set()
        self._names: dict[int, str] = {}
        self._began = time.time()
        self._kills_before = memory.kills()
        self._command: list[str] = []
        self._environment: dict[str, str] = {}
        self._heard = time.monotonic()
        self._gone = False

    def run(self, wake: int) -> None:
        """Runs until the launcher is gone, then kills the tasks.

        Args:
          wake: a descriptor that is readable when a process may have ended.
        """
        try:
            while not self._gone:
                self._step(wake)
        finally:
            for process in self._processes.values():
                process.close()

    def stop(self) -> None:
        """Ends `run`; for handlers of signals."""
        self._gone = True

    def _step(self, wake: int) -> None:
        ready = select.poll()
        for descriptor in (wake, self._source):
            ready.register(descriptor, select.POLLIN)
        reading = {output.source: output for output in self._reading if not output.full}
        for descriptor in reading:
            ready.register(descriptor, select.POLLIN)
        ready.register(self._out.descriptor, select.POLLOUT if self._out.pending else 0)
        left = self._heard + records.SILENCE - time.monotonic()
        if left <= 0:
            print(
                f"tfdist agent: nothing heard from the launcher for {records.SILENCE:g} s; ending "
                "its tasks",
                file=sys.stderr,
            )
            self._gone = True
            return
        for descriptor, events in ready.poll(1000 * left):
            if descriptor == wake:
                os.read(wake, 4096)
            elif descriptor == self._source:
                self._receive()
            elif descriptor == self._out.descriptor:
                if events & (select.POLLERR | select.POLLHUP):
                    self._gone = True
                else:
                    self._out.flush_some()
            elif not reading[descriptor].read_some():
                self._reading.remove(reading[descriptor])
        self._tell_ends()
        self._guard.revive(process.pid for process in self._processes.values())

    def _receive(self) -> None:
        data = os.read(self._source, _READ_SIZE)
        if not data:
            self._gone = True
            return
        self._heard = time.monotonic()
        for record in self._reader.feed(data):
            # The others, such as beats, only tell that the launcher lives.
            handler = getattr(self, f"_do_{record['record']}", None)
            if handler is not None:
                handler(record)

    def _do_settings(self, record: records.Record) -> None:
        self._command = [sys.executable, "-u", *record["command"]]
        self._environment = {**login_environment(), **record["environment"]}
        for name in record["directories"]:
            self._environment[name] = self._directories(name)

    def _do_ports(self, record: records.Record) -> None:
        try:
            self._out.line(records.line("ports", ports=free_ports(record["count"])))
        except OSError as error:
            self._out.line(records.line("ports", ports=[], error=str(error)))

    def _do_start(self, record: records.Record) -> None:
        task = record["task"]
        spec = ProcessSpec(record["variables"], record["terminal"], record["cpus"], record["gpus"])
        sinks = [RecordSink(task, stream, self._out) for stream in range(record["streams"])]
        try:
            process = LocalProcess(self._command, self._environment, spec, sinks, self._guard.pipe)
        except (OSError, ValueError) as error:
            number = getattr(error, "errno", None) or errno.EINVAL
            self._out.line(records.line("failed", task=task, errno=number, error=str(error)))
            return
        self._told.discard(task)
        self._processes[task] = process
        self._names[task] = record["name"]
        self._reading.extend(process.outputs)
        self._out.line(records.line("started", task=task))

    def _do_signal(self, record: records.Record) -> None:
        if record["task"] in self._processes:
            self._processes[record["task"]].signal(record["number"])

    def _do_notify(self, record: records.Record) -> None:
        if record["task"] in self._processes:
            self._processes[record["task"]].notify()

    def _do_resize(self, record: records.Record) -> None:
        if record["task"] in self._processes:
            self._processes[record["task"]].resize(record["rows"], record["columns"])

    def _do_succeeded(self, record: records.Record) -> None:
        self._succeeded()

    def _do_close(self, record: records.Record) -> None:
        task = record["task"]
        process = self._processes.pop(task)
        self._reading = [output for output in self._reading if output not in process.outputs]
        end = process.close()
        about_kill = ""
        if end.code == -signal.SIGKILL:
            about_kill = memory.about_kill(end.peak, memory.limit(), self._kills_before)
        note = self._note(self._names[task])
        # The clocks of two hosts differ: the age of a note is the same on both.
        age = 0.0 if note is None else time.time() - note.at
        fields = None if note is None else dataclasses.asdict(note)
        told = {"code": end.code, "about_kill": about_kill, "note": fields, "note_age": age}
        self._out.line(records.line("closed", task=task, **told))

    def _note(self, task: str) -> FailureNote | None:
        """Returns a task's own note of its failure, whose file the launcher cannot read."""
        folder = self._environment.get("TFDIST_DEBUG_DIR")
        return failures.read(Path(folder), task, self._began) if folder else None

    def _tell_ends(self) -> None:
        for task, process in self._processes.items():
            found = None if task in self._told else process.find_exit()
            if found is not None:
                self._told.add(task)
                self._out.line(records.line("exit", task=task, code=found.code))


def main() -> int:
    """Runs the agent on standard input and output; returns its exit code."""
    source, out = _own_descriptors()
    stream = OutputStream(out)
    cpus = [dataclasses.astuple(cpu) for cpu in usable_cpus()]
    stream.line(records.line("hello", version=__version__, cpus=cpus))
    wake, writable = os.pipe()
    for descriptor in (wake, writable):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    with contextlib.ExitStack() as stack:
        dumped: list[DebugDirectory] = []

        def directory(variable: str) -> str:
            if variable == "TFDIST_DEBUG_DIR":
                folder = debug_directory("tfdist agent", socket.gethostname())
                dumped.append(stack.enter_context(folder))
                return str(dumped[-1].path)
            return stack.enter_context(tempfile.TemporaryDirectory(prefix="tfdist-data-"))

        def forget() -> None:
            for folder in dumped:
                folder.is_needed = False

        agent = Agent(source, stream, stack.enter_context(guarded()), directory, forget)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, lambda number, frame: agent.stop())
        agent.run(wake)
    return 0


def _own_descriptors() -> tuple[int, int]:
    """Returns the descriptors of the connection, which nothing else can read or write.

    Standard input is empty from then on, and standard output is standard error.
    """
    source, out = os.dup(0), os.dup(1)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    return source, out
