"""The channel between `tfdist scale` and the launcher of a running elastic job.

It is a Unix socket: the kernel tells who is at the other side, so nothing that arrives is believed
but the number itself. The socket has mode 0600 and lies in a directory of its own with mode 0700;
its path is in the job file, which only the job's user can read. Both sides also ask the kernel for
the other's user. TCP on loopback would need a secret, and a signal cannot carry an answer.

A packet (SOCK_SEQPACKET) is a whole message: the launcher never waits for the rest of one. A client
asks once, {"workers": 4}, and gets one answer, {"done": ["worker 3 starts", ...]} or
{"refused": "..."}. The request of a client that has gone since is dropped: it has told its user
that there was no answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import stat
import struct
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path

from tfdist.config.local_sockets import short, user_of
from tfdist.launch.policies.elastic import ScaleError
from tfdist.launch.private_directory import private_directory

# Bytes of a request, and of an answer: a line for each slot.
_MAX_REQUEST = 1024
_MAX_ANSWER = 64 * 1024
# A further client takes the place of the client that has been silent for longest.
_MAX_CLIENTS = 8
_PREFIX = "tfdist-job-"


class ScaleRequest:
    """A client's request, which is answered once.

    Attributes:
      workers: the number of workers that the client asks for.
    """

    def __init__(self, workers: int, client: socket.socket) -> None:
        self.workers = workers
        self._client = client

    @property
    def is_awaited(self) -> bool:
        """Whether the client still waits for the answer; a client that has given up has said so."""
        gone = select.poll()
        gone.register(self._client, 0)  # poll always reports the other side's end
        return not gone.poll(0)

    def done(self, lines: list[str]) -> None:
        """Answers with the completed actions."""
        self._answer({"done": lines})

    def refuse(self, reason: str) -> None:
        """Answers that nothing was done, and why."""
        self._answer({"refused": reason})

    def _answer(self, answer: dict[str, object]) -> None:
        # The client may be gone. A first packet of this size fits the socket's buffer.
        with contextlib.suppress(OSError), self._client:
            self._client.send(json.dumps(answer).encode())


class ScaleServer:
    """The launcher's side. It never blocks: `readers` has the functions to call on input.

    Args:
      readers: descriptors to poll, each with the handler of its input; changed as clients come and
        go.
      requested: takes the valid requests, and answers them.
      listener: the socket that `scale_listener` opened.
    """

    def __init__(
        self,
        readers: MutableMapping[int, Callable[[], None]],
        requested: Callable[[ScaleRequest], None],
        listener: socket.socket,
    ) -> None:
        self._readers = readers
        self._requested = requested
        self._listener = listener
        self._clients: list[socket.socket] = []
        readers[listener.fileno()] = self._accept

    def close(self) -> None:
        """Answers no more; closes all clients."""
        self._readers.pop(self._listener.fileno(), None)
        for client in list(self._clients):
            self._forget(client)
            client.close()

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return  # it has gone already, or this process has no descriptors left
        if user_of(client) not in (os.geteuid(), 0):
            client.close()
            return
        client.setblocking(False)
        if len(self._clients) == _MAX_CLIENTS:
            silent = self._clients[0]
            self._forget(silent)
            ScaleRequest(0, silent).refuse("too many others ask at the same time")
        self._clients.append(client)
        self._readers[client.fileno()] = lambda: self._read(client)

    def _read(self, client: socket.socket) -> None:
        try:
            data = client.recv(_MAX_REQUEST)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._forget(client)
        try:
            workers = _number_in(data)
        except ValueError as error:
            ScaleRequest(0, client).refuse(f"expected a number of workers, received {error}")
        else:
            self._requested(ScaleRequest(workers, client))

    def _forget(self, client: socket.socket) -> None:
        self._clients.remove(client)
        del self._readers[client.fileno()]


@contextlib.contextmanager
def scale_listener() -> Iterator[tuple[socket.socket, Path]]:
    """Opens the socket at which a launcher is asked; closes and removes it at the end.

    Yields:
      The socket, which does not block, and its path in a new directory.

    Raises:
      OSError: the socket cannot be made.
    """
    with (
        private_directory(_PREFIX) as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
    ):
        path = folder / "scale"
        listener.setblocking(False)
        with short(path) as address:
            listener.bind(address)
        # Before `listen` no process can connect.
        os.chmod(path, 0o600)
        listener.listen(_MAX_CLIENTS)
        yield listener, path


def request_scale(path: Path, workers: int, timeout: float) -> list[str]:
    """Asks a launcher for a number of workers.

    Args:
      path: its socket, as its job file names it.
      workers: the number.
      timeout: seconds to wait for the answer.

    Returns:
      The completed actions, as lines.

    Raises:
      ScaleError: the launcher refuses.
      ConnectionError, FileNotFoundError: the job has ended.
      TimeoutError: the launcher does not answer in time.
      PermissionError: another user listens there.
      OSError: the socket cannot be used.
      ValueError: the answer is none of a launcher.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        # Not `settimeout`, with which `connect` fails at once while others wait for the launcher.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(timeout))
        with short(path) as address:
            if not stat.S_ISSOCK(os.stat(address).st_mode):
                raise FileNotFoundError(f"{path} is no socket")
            try:
                server.connect(address)
            except BlockingIOError:
                raise TimeoutError from None
        server.settimeout(timeout)
        if user_of(server) not in (os.geteuid(), 0):
            raise PermissionError(f"another user listens at {path}")
        server.send(json.dumps({"workers": workers}).encode())
        answer = server.recv(_MAX_ANSWER)
    if not answer:
        raise ConnectionResetError("the launcher has ended")
    fields = json.loads(answer)
    if not isinstance(fields, dict):
        raise ValueError(f"expected an object, received {fields!r}")
    if "refused" in fields:
        raise ScaleError(str(fields["refused"]))
    return [str(line) for line in fields.get("done", ())]


def _timeval(seconds: float) -> bytes:
    """Returns a time as `struct timeval`."""
    whole = int(seconds)
    return struct.pack("@ll", whole, int((seconds - whole) * 1e6))


def _number_in(data: bytes) -> int:
    """Returns the number that a request asks for; raises ValueError if it is no request."""
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError(f"{len(data)} bytes that are no JSON") from None
    workers = fields.get("workers") if isinstance(fields, dict) else None
    if type(workers) is not int:
        raise ValueError("something else")
    return workers
