"""The records that the launcher reads from the agent of a host: `tfdist/launch/hosts`.

Input: bytes of the agent, with a split point of each read, or how right records are altered. They
come by a pipe, as from ssh. The connection may be lost by them, which has a reason; nothing raises,
and what answers a request is the answer, or a HostError.
"""

import dataclasses
import json
import os
from types import SimpleNamespace
from unittest import mock

from altered_json import altered

from tfdist._version import __version__
from tfdist.launch.hosts import connection, records
from tfdist.launch.hosts.connection import (
    AgentCommand,
    HostConnection,
    HostError,
    RemoteProcess,
)
from tfdist.launch.hosts.host_list import Host
from tfdist.launch.process import ProcessSpec
from tfdist.observe.failures import note_of_exit


class _Sink:
    full = False

    def take(self, data: bytes) -> None:
        assert isinstance(data, bytes)

    def end(self) -> None:
        pass


def _connection(source: int, out: int) -> HostConnection:
    """A connection to an agent whose ssh is a pipe, and has ended."""
    silent = os.open(os.devnull, os.O_RDONLY)

    def stream(descriptor: int) -> SimpleNamespace:
        return SimpleNamespace(fileno=lambda: descriptor, close=lambda: None)

    ssh = SimpleNamespace(
        stdin=stream(out),
        stdout=stream(source),
        stderr=SimpleNamespace(fileno=lambda: silent, close=lambda: os.close(silent)),
        poll=lambda: 0,
        wait=lambda timeout=None: 0,
    )
    with mock.patch.object(connection.subprocess, "Popen", lambda *arguments, **options: ssh):
        return HostConnection(Host("host"), AgentCommand(), mock.MagicMock())


def run(data: bytes) -> None:
    source, agent = os.pipe()
    out = os.open(os.devnull, os.O_WRONLY)
    try:
        _receive(source, agent, out, data)
    finally:
        for descriptor in (source, agent, out):
            os.close(descriptor)


def _receive(source: int, agent: int, out: int, data: bytes) -> None:
    host = _connection(source, out)
    try:
        _handle(host, agent, data)
    finally:
        host.close()


def _handle(host: HostConnection, agent: int, data: bytes) -> None:
    process = RemoteProcess(host, 0, [_Sink(), _Sink()])
    host._processes[0] = process
    question = data[0] % 4 if data else 0
    rest = data[1:]
    if data and data[0] >= 128:
        lines = _LINES[question]
        rest = b"\xff" + b"".join(
            (altered(line, rest[1:]) if number == (rest or b"\0")[0] % len(lines) else line) + b"\n"
            for number, line in enumerate(lines)
        )
    while rest and not host.is_lost:
        size = min(1 + rest[0] * 16, 60000)
        part, rest = rest[1 : 1 + size], rest[1 + size :]
        if not part:
            continue
        os.write(agent, part)
        if question == 0 or rest:
            host.read_some()
        else:
            _ask(host, question)
    if host.is_lost:
        assert host.problem
    if process.closed is not None:
        assert isinstance(process.closed.code, int)
        note = process.closed.note
        assert note is None or isinstance(note.reason, str)


def _ask(host: HostConnection, question: int) -> None:
    with (
        mock.patch.object(connection, "_ANSWER_TIMEOUT", 0.005),
        mock.patch.object(connection, "_CLOSE_TIMEOUT", 0.005),
    ):
        try:
            if question == 1:
                assert all(isinstance(port, int) for port in host.free_ports(2))
            elif question == 2:
                host.start(1, ProcessSpec({}, None, None), [_Sink()])
            else:
                host.close_process(0)
        except HostError as error:
            assert "host" in str(error)


_HELLO = records.line("hello", version=__version__, cpus=[[0, 0, 0]])
_NOTE = dataclasses.asdict(note_of_exit(3, "worker 0", 0))
_LINES = {
    0: [
        _HELLO,
        records.line("output", task=0, stream=1, data=records.packed(b"text")),
        records.line("exit", task=0, code=3),
        records.line("closed", task=0, code=3, about_kill="", note=_NOTE, note_age=2.5),
    ],
    1: [_HELLO, records.line("ports", ports=[1, 2])],
    2: [_HELLO, records.line("failed", task=1, errno=2, error="no such file")],
    3: [records.line("closed", task=0, code=0, about_kill="", note=None, note_age=0.0)],
}


def seeds() -> list[bytes]:
    made = [
        bytes([question, 255]) + b"\n".join(lines) + b"\n" for question, lines in _LINES.items()
    ]
    started = b"\n".join([_HELLO, records.line("started", task=1)])
    odd = json.dumps({"record": "exit", "task": 0, "code": float("inf")}).encode()
    changed = [bytes([128 + number, number // 4, number // 16, number]) for number in range(96)]
    return [*made, b"\2\xff" + started + b"\n", b"\0\xff" + odd + b"\n", *changed]
