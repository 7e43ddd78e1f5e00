"""The launcher's side of a host: the connection to its agent, and the processes there.

    CONNECTING --hello--> READY --end of the stream, or a task that is not closed in time--> LOST
        \\--ssh ends without it, or too late---------------------------------------------------^

ssh has a session of its own, so that Ctrl-C ends the tasks in order and not the connection. Nothing
of the job is on its command line: the folders of modules, the secret and the environment are in the
stream. When the launcher dies, the kernel closes the stream, and the agent kills its tasks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import errno
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from tfdist._version import __version__
from tfdist.config.host_environment import python_path
from tfdist.config.own_program import WITHOUT_CURRENT_DIRECTORY
from tfdist.launch.binding import Cpu
from tfdist.launch.hosts import records
from tfdist.launch.hosts.host_list import Host
from tfdist.launch.output import HeldLines, OutputStream, Sink, TaskLines, TaskOutput
from tfdist.launch.process import Exit, ProcessSpec
from tfdist.observe import failures

# Reads where it is and what modules it has from the first line, then hands over to the agent. It
# is one line of one kind of quotes, since any user's shell may read it. A launcher that cannot
# reach another host hangs up before it has written that line, and has told the reason itself.
_BOOTSTRAP = WITHOUT_CURRENT_DIRECTORY + (
    "import importlib.util, json, os; "
    "line = open(0, 'rb', 0, closefd=False).readline(); "
    "line.endswith(os.linesep.encode()) or sys.exit(); "
    "first = json.loads(line); "
    "os.chdir(first['folder']); sys.path[:0] = first['path']; "
    "importlib.util.find_spec('tfdist') or sys.exit('expected tfdist among the packages of ' "
    "+ sys.executable + ', or in a folder of PYTHONPATH, found none'); "
    "from tfdist.launch.hosts import agent; sys.exit(agent.main())"
)
# The first value of an option counts: the user's options precede.
_SSH_OPTIONS = (
    *("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20"),
    *("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4"),
)
_READ_SIZE = 64 * 1024
# Seconds until the agent has said hello, a request is answered, a task is closed, ssh has ended.
_CONNECT_TIMEOUT = 60.0
_ANSWER_TIMEOUT = 30.0
_CLOSE_TIMEOUT = 30.0
_END_TIMEOUT = 10.0
_LAST_WRITE_TIMEOUT = 2.0
_LOST_CODE = 255
# Errors where a record is used that no agent sends.
_UNUSABLE = (records.RecordError, ArithmeticError, LookupError, TypeError, ValueError)


class HostError(OSError):
    """A host cannot be used; the message names it, and has ssh's own words."""

    def __str__(self) -> str:
        # The number says nothing about ssh.
        return str(self.strerror)


@dataclasses.dataclass(frozen=True)
class AgentCommand:
    """How agents are started.

    Attributes:
      ssh: the ssh program with the user's options.
      python: the path of Python on the hosts.
    """

    ssh: Sequence[str] = ("ssh",)
    python: str = sys.executable

    def words(self, host: Host) -> list[str]:
        """Returns the command line for a host."""
        remote = f"exec {shlex.quote(self.python)} -c {shlex.quote(_BOOTSTRAP)}"
        # ssh wants an IPv6 address without brackets.
        user, at, address = host.name.rpartition("@")
        return [*self.ssh, *_SSH_OPTIONS, user + at + address.strip("[]"), remote]


class _State(enum.Enum):
    CONNECTING = enum.auto()
    READY = enum.auto()
    LOST = enum.auto()


class HostConnection:
    """The connection to the agent of one host; the launcher's loop reads and writes it.

    Args:
      host: the host.
      command: how its agent is started.
      stream: receives what ssh and the agent say.

    Raises:
      HostError: ssh cannot be started.
    """

    def __init__(self, host: Host, command: AgentCommand, stream: OutputStream) -> None:
        self.host = host
        self.tail: deque[str] = deque(maxlen=5)
        # The CPUs that tasks may use there; known once it is ready.
        self.cpus: list[Cpu] = []
        self._state = _State.CONNECTING
        self._problem = ""
        self._processes: dict[int, RemoteProcess] = {}
        self._answers: list[records.Record] = []
        self._reader = records.RecordStream()
        self._since = time.monotonic()
        self._next_beat = self._since + records.BEAT
        try:
            self._ssh = subprocess.Popen(
                command.words(host),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise HostError(
                error.errno, f"host {host.name}: cannot start {command.ssh[0]}: {error.strerror}"
            ) from error
        assert self._ssh.stdin and self._ssh.stdout and self._ssh.stderr
        self.source = self._ssh.stdout.fileno()
        self.out = OutputStream(self._ssh.stdin.fileno())
        self._held = HeldLines(stream)
        self.words = TaskOutput(
            os.dup(self._ssh.stderr.fileno()),
            TaskLines(host.name, 0, self._held, self.tail, None, live=False),
        )
        self._ssh.stderr.close()
        self.out.line(json.dumps({"folder": os.getcwd(), "path": python_path()}).encode())

    @property
    def is_ready(self) -> bool:
        """Whether tasks can be started there."""
        return self._state is _State.READY

    @property
    def is_lost(self) -> bool:
        """Whether it can be used no more."""
        return self._state is _State.LOST

    @property
    def problem(self) -> str:
        """Why it is lost, with ssh's own words."""
        return self._problem

    @property
    def full(self) -> bool:
        """Whether it must not be read now, so that memory stays bounded."""
        return any(process.full for process in self._processes.values())

    @property
    def next_beat(self) -> float:
        """When the next call of `beat` is due."""
        return self._next_beat

    def beat(self) -> None:
        """Tells the agent that the launcher lives, if it is time."""
        now = time.monotonic()
        if now >= self._next_beat:
            self._next_beat = now + records.BEAT
            self.send("beat")
            if self._state is _State.CONNECTING and now > self._since + _CONNECT_TIMEOUT:
                self.lose(f"its agent did not answer within {_CONNECT_TIMEOUT:g} s")

    def send(self, kind: str, **fields: object) -> None:
        """Queues a record."""
        if self._state is not _State.LOST:
            self.out.line(records.line(kind, **fields))

    def read_some(self) -> bool:
        """Reads and handles some records; returns False at the end of the connection."""
        if self._state is _State.LOST:
            return False
        data = os.read(self.source, _READ_SIZE)
        if not data:
            self.lose("")
            return False
        try:
            for record in self._reader.feed(data):
                self._handle(record)
        except _UNUSABLE as error:
            # As a login script that prints something.
            self.lose(f"expected records of tfdist, received {error}")
        return not self.is_lost

    def ask(self, kind: str, answers: Sequence[str], **fields: object) -> records.Record:
        """Sends a record, and waits for the first that answers it.

        Raises:
          HostError: the connection is lost.
        """
        self._answers.clear()
        self.send(kind, **fields)
        self.pump(lambda: bool(self._answers), _ANSWER_TIMEOUT, f"{kind!r} was not answered")
        if not self._answers:
            raise self.error()
        answer = self._answers.pop(0)
        if answer["record"] not in answers:
            raise self._misunderstood(kind, answer)
        return answer

    def pump(self, done: Callable[[], bool], timeout: float, late: str) -> None:
        """Reads and writes until something is done, or the connection lost.

        Args:
          done: whether it is.
          timeout: seconds, after which the connection is lost.
          late: why, then.
        """
        deadline = time.monotonic() + timeout
        while not done() and self._state is not _State.LOST:
            left = deadline - time.monotonic()
            if left <= 0:
                self.lose(f"{late} within {timeout:g} s")
                return
            ready = select.poll()
            ready.register(self.source, select.POLLIN)
            if self.out.pending:
                ready.register(self.out.descriptor, select.POLLOUT)
            for descriptor, _ in ready.poll(1000 * left):
                if descriptor == self.source:
                    self.read_some()
                else:
                    self.out.flush_some()

    def wait_until_ready(self) -> None:
        """Waits until tasks can be started there.

        Raises:
          HostError: it cannot be reached.
        """
        self.pump(lambda: self.is_ready, _CONNECT_TIMEOUT, "its agent did not answer")
        if not self.is_ready:
            raise self.error()

    def start(self, task: int, spec: ProcessSpec, sinks: Sequence[Sink]) -> RemoteProcess:
        """Starts the process of a task.

        Raises:
          OSError: it cannot be started, or the host is lost.
        """
        if not self.is_ready:
            raise self.error()
        # First: its output and its end may arrive together with the answer.
        process = self._processes[task] = RemoteProcess(self, task, sinks)
        try:
            answer = self.ask(
                "start",
                ("started", "failed"),
                task=task,
                variables=dict(spec.variables),
                terminal=spec.terminal,
                cpus=None if spec.cpus is None else list(spec.cpus),
                gpus=None if spec.gpus is None else list(spec.gpus),
                name=spec.name,
                streams=len(sinks),
            )
            if answer["record"] == "failed":
                try:
                    number, why = int(answer["errno"]), answer["error"]
                except _UNUSABLE:
                    raise self._misunderstood("start", answer) from None
                raise HostError(number, f"host {self.host.name}: {why}")
        except HostError:
            del self._processes[task]
            raise
        return process

    def free_ports(self, count: int) -> list[int]:
        """Returns ports that are free there.

        Raises:
          OSError: there are too few, or the host is lost.
        """
        answer = self.ask("ports", ("ports",), count=count)
        if "error" in answer:
            raise HostError(errno.EADDRINUSE, f"host {self.host.name}: {answer['error']}")
        try:
            ports = [int(port) for port in answer["ports"]]
        except _UNUSABLE:
            raise self._misunderstood("ports", answer) from None
        if len(ports) != count:
            raise self._misunderstood("ports", answer)
        return ports

    def settle(
        self, command: Sequence[str], environment: Mapping[str, str], directories: Sequence[str]
    ) -> None:
        """Gives the agent what all its tasks have in common.

        Args:
          command: the script and its arguments.
          environment: variables of the job.
          directories: variables that are to name a directory of the agent's.
        """
        self.send(
            "settings",
            command=list(command),
            environment=dict(environment),
            directories=list(directories),
        )

    def close_process(self, task: int) -> Exit | None:
        """Ends the processes of a task and takes its last output.

        Returns:
          Its end, with all that its host knows; None if the host is lost.
        """
        process = self._processes[task]
        self.send("close", task=task)
        late = f"task {task} did not end"
        self.pump(lambda: process.closed is not None, _CLOSE_TIMEOUT, late)
        self._processes.pop(task, None)
        return process.closed

    def lose(self, why: str) -> None:
        """Gives up the host: its tasks count as ended. The agent kills them when it notices."""
        if self._state is _State.LOST:
            return
        was_ready = self._state is _State.READY
        self._state = _State.LOST
        if not why:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._ssh.wait(_END_TIMEOUT)
            self.words.drain()
            code = self._ssh.poll()
            why = "the connection ended" if was_ready else "its agent did not start"
            why += "" if code is None else f" (exit code {code})"
            why += f": {' / '.join(self.tail)}" if self.tail else ""
            self._held.drop(len(self.tail))
        self._held.release()
        self._problem = why
        self._kill()
        at = time.monotonic()
        for process in self._processes.values():
            process.ended(Exit(_LOST_CODE, at, f"its host {self.host.name} was lost: {why}"))

    def _misunderstood(self, kind: str, answer: records.Record) -> HostError:
        """Gives up the host for an answer that no agent gives; returns the error."""
        self.lose(f"expected an answer of tfdist to {kind!r}, received {answer!r:.200}")
        return self.error()

    def error(self) -> HostError:
        """Returns the error of a lost host."""
        why = self._problem or "not connected yet"
        return HostError(errno.EHOSTUNREACH, f"host {self.host.name}: {why}")

    def hang_up(self) -> None:
        """Lets the agent end, which kills what is left of its tasks. Then call `close`."""
        if self._state is _State.READY:
            self._write_rest()
        self._state = _State.LOST
        self._problem = self._problem or "the connection was closed"
        assert self._ssh.stdin is not None
        # Nothing is in its buffer.
        self._ssh.stdin.close()

    def _write_rest(self) -> None:
        """Writes what is queued, unless the agent does not read it for some time."""
        deadline = time.monotonic() + _LAST_WRITE_TIMEOUT
        writable = select.poll()
        writable.register(self.out.descriptor, select.POLLOUT)
        while self.out.pending and writable.poll(1000 * max(0.0, deadline - time.monotonic())):
            self.out.flush_some()

    def close(self) -> None:
        """Waits for the end of the agent and of ssh, and takes their last words."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._ssh.wait(_END_TIMEOUT)
        self._kill()
        self.words.drain()
        self._held.release()
        assert self._ssh.stdout is not None
        self._ssh.stdout.close()

    def _kill(self) -> None:
        # Its group: a program in place of ssh may have children.
        if self._ssh.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._ssh.pid, signal.SIGKILL)
            self._ssh.wait()

    def _handle(self, record: records.Record) -> None:
        kind = record["record"]
        if kind == "hello":
            if record["version"] != __version__:
                self.lose(
                    f"expected tfdist {__version__}, as here, received tfdist {record['version']}"
                )
                return
            self.cpus = [Cpu(*numbers) for numbers in record["cpus"]]
            self._state = _State.READY
            self._held.release()
        elif kind == "output":
            process = self._processes.get(record["task"])
            if process is not None:
                process.sinks[record["stream"]].take(records.unpacked(record["data"]))
        elif kind == "exit":
            self._processes[record["task"]].ended(Exit(int(record["code"]), time.monotonic()))
        elif kind == "closed":
            self._processes[record["task"]].closed = _closed(record)
        else:
            self._answers.append(record)


def _closed(record: records.Record) -> Exit:
    note = None if record["note"] is None else failures.from_fields(record["note"])
    if note is not None:
        note = dataclasses.replace(note, at=time.time() - float(record["note_age"]))
    about_kill = str(record["about_kill"])
    return Exit(int(record["code"]), time.monotonic(), note=note, about_kill=about_kill)


class RemoteProcess:
    """A process on another host: a `TaskProcess`.

    Args:
      connection: of its host.
      task: the task's index.
      sinks: receive its stdout and its stderr; a single one receives both.

    Attributes:
      closed: its end, with all that its host knows, once the agent has closed it.
    """

    def __init__(self, connection: HostConnection, task: int, sinks: Sequence[Sink]) -> None:
        self._connection = connection
        self._task = task
        self.sinks = sinks
        self.closed: Exit | None = None
        self._exit: Exit | None = None
        # Its output arrives by the connection.
        self.outputs: Sequence[TaskOutput] = ()
        self.group: int | None = None

    @property
    def full(self) -> bool:
        """Whether its output must wait."""
        return any(sink.full for sink in self.sinks)

    def ended(self, end: Exit) -> None:
        """Notes its end."""
        self._exit = self._exit or end

    def find_exit(self) -> Exit | None:
        """Returns how it has ended; None while it runs."""
        return self._exit

    def signal(self, number: int) -> None:
        """Sends a signal to it and its children, and continues stopped ones."""
        self._connection.send("signal", task=self._task, number=int(number))

    def notify(self) -> None:
        """Sends SIGTERM to it alone: its children, such as readers of its input, continue."""
        self._connection.send("notify", task=self._task)

    def resize(self, rows: int, columns: int) -> None:
        """Gives its terminal another size."""
        self._connection.send("resize", task=self._task, rows=rows, columns=columns)

    def close(self) -> Exit:
        """Kills it and its children, takes its last output. Call it once."""
        closed = self._connection.close_process(self._task)
        for sink in self.sinks:
            sink.end()
        if closed is not None:
            return closed
        if self._exit is None:
            problem = f"its host {self._connection.host.name} was lost: {self._connection.problem}"
            self._exit = Exit(_LOST_CODE, time.monotonic(), problem)
        return self._exit
