"""The channel by which a program asks the tasks of one machine for a dump, or for a timeline.

Each task listens at a Unix socket, `<task>.sock` in the directory of its dumps: a thread of its own
answers, also while the main thread waits in C++ or runs an endless loop. The kernel tells the user
at the other side; others are not answered. A packet (SOCK_SEQPACKET) is a whole message:

    request                     answer
    timeline start <path>       "recording <path>", or "failed: <why>"
    timeline stop               "stopped <path>", or the same
    the reason of a dump        "written <path>", or the same
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from tfdist.config.local_sockets import short, user_of

_SUFFIX = ".sock"
# Of a request, and of an answer.
MAX_BYTES = 4096
START_TIMELINE, STOP_TIMELINE = "timeline start ", "timeline stop"
_BACKLOG = 16
# Seconds in which a client that has connected must ask.
_REQUEST_TIMEOUT = 1.0


def listen(directory: Path, name: str) -> socket.socket:
    """Opens a task's socket, in the place of a former process's.

    Args:
      directory: of the dumps.
      name: the task's, as in file names.

    Raises:
      OSError: the socket cannot be made.
    """
    path = directory / f"{name}{_SUFFIX}"
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with short(path) as address:
            listener.bind(address)
        os.chmod(path, 0o600)  # before `listen` no process can connect
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def remove(directory: Path, name: str) -> None:
    """Removes a task's socket."""
    (directory / f"{name}{_SUFFIX}").unlink(missing_ok=True)


@contextlib.contextmanager
def request(listener: socket.socket) -> Iterator[tuple[str, socket.socket] | None]:
    """Takes a request; yields its text and the client, or `None` if it is none of this user."""
    try:
        client, _ = listener.accept()
    except OSError:
        yield None  # it has gone already
        return
    with client:
        text = None
        if user_of(client) in (os.geteuid(), 0):
            client.settimeout(_REQUEST_TIMEOUT)
            with contextlib.suppress(OSError):
                text = client.recv(MAX_BYTES).decode(errors="replace")
        yield (text, client) if text else None


def answer(client: socket.socket, text: str) -> None:
    """Answers a request; a client that has gone gets nothing."""
    with contextlib.suppress(OSError):
        client.send(text.encode()[:MAX_BYTES])


def tell_others(directory: Path, name: str, reason: str) -> None:
    """Asks all other tasks of a directory to write theirs, without waiting for it."""
    for path in directory.glob(f"*{_SUFFIX}"):
        if path.name != f"{name}{_SUFFIX}":
            with contextlib.suppress(OSError), _asked(path, reason, timeout=0.5):
                pass


def ask_all(directory: Path, request: str, timeout: float) -> dict[str, str]:
    """Asks all tasks of a directory, and waits for the answers.

    Args:
      directory: of the dumps.
      request: see above.
      timeout: seconds to wait for all.

    Returns:
      The answers by the tasks' names in file names; "failed: <why>" of a task that has not
      answered.

    Raises:
      OSError: the directory cannot be read.
    """
    deadline = time.monotonic() + timeout
    answers: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        waiting: dict[int, tuple[str, socket.socket]] = {}
        poll = select.poll()
        for path in sorted(p for p in directory.iterdir() if p.suffix == _SUFFIX):
            name = path.name.removesuffix(_SUFFIX)
            try:
                server = stack.enter_context(_asked(path, request, timeout))
            except OSError as error:
                # Of a process that was killed the socket is left, and refuses.
                answers[name] = f"failed: its process has ended ({error.strerror or error})"
                continue
            waiting[server.fileno()] = name, server
            poll.register(server, select.POLLIN)
        while waiting and (left := deadline - time.monotonic()) > 0:
            for descriptor, _ in poll.poll(1000 * left):
                poll.unregister(descriptor)
                name, server = waiting.pop(descriptor)
                try:
                    text = server.recv(MAX_BYTES).decode(errors="replace")
                except OSError as error:
                    text = f"failed: {error.strerror}"
                answers[name] = text or "failed: its process ended meanwhile"
        for name, _ in waiting.values():
            answers[name] = (
                f"failed: no answer within {timeout:g} s; it is stopped, or code that is not "
                "Python holds Python's lock"
            )
    return answers


@contextlib.contextmanager
def _asked(path: Path, request: str, timeout: float) -> Iterator[socket.socket]:
    """Connects to a task and asks it; yields the connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.settimeout(timeout)
        with short(path) as address:
            server.connect(address)
        if user_of(server) not in (os.geteuid(), 0):
            raise PermissionError(f"another user listens at {path}")
        server.send(request.encode()[:MAX_BYTES])
        yield server
