"""A `python` that has imported TensorFlow already, for tests that start scripts.

It takes python's own arguments. The command is a small program (warm_client.py), which sends its
arguments, environment, working directory and standard streams to the test's process. The test's
process forks the script from the ranks' fork server (ranks.py) and returns its exit code to the
program. Importing TensorFlow takes 5 s of processor time per task, and an example starts four
tasks.

With TEST_COLD_PYTHON=1 it is the plain `python`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import os
import runpy
import shlex
import signal
import socket
import sys
import tempfile
import threading
from multiprocessing import reduction
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

from support.processes.rank_process import end_with_parent
from support.processes.ranks import fork_server

_CLIENT = Path(__file__).with_name("warm_client.py")
_FLAGS = {"-u", "-I", "-S", "-E", "-B"}


@functools.cache
def interpreter() -> str:
    """The command to start scripts with, instead of `sys.executable`."""
    if os.environ.get("TEST_COLD_PYTHON") == "1":
        return sys.executable
    folder = tempfile.TemporaryDirectory(prefix="warm-python-")
    atexit.register(folder.cleanup)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{folder.name}/socket")
    listener.listen(64)
    command = Path(folder.name, "python")
    program = shlex.join([sys.executable, "-I", "-S", str(_CLIENT), f"{folder.name}/socket"])
    command.write_text(f'#!/bin/sh\nexec {program} "$@"\n')
    command.chmod(0o700)
    serve = functools.partial(_serve, fork_server(), listener, str(command))
    threading.Thread(target=serve, name="warm python", daemon=True).start()
    return str(command)


class _Streams:
    """File descriptors that are passed to a process when it starts."""

    def __init__(self, descriptors: list[int]) -> None:
        self._descriptors = descriptors

    def __reduce__(self) -> Any:
        return _received, (tuple(map(reduction.DupFd, self._descriptors)),)


def _received(duplicates: tuple[Any, ...]) -> list[int]:
    return [duplicate.detach() for duplicate in duplicates]


def _serve(context: BaseContext, listener: socket.socket, command: str) -> None:
    while True:
        client, _ = listener.accept()
        threading.Thread(target=_answer, args=(context, client, command), daemon=True).start()


def _answer(context: BaseContext, client: socket.socket, command: str) -> None:
    with client, contextlib.suppress(OSError):  # a client that was killed
        size, descriptors, _, _ = socket.recv_fds(client, 8, 3)
        with client.makefile("rb") as stream:
            request = json.loads(stream.read(int.from_bytes(size, "big")))
        process = context.Process(target=_run, args=(request, _Streams(descriptors), command))
        try:
            process.start()
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        try:
            client.sendall(process.pid.to_bytes(8, "big"))
            wait([process.sentinel, client])
            if process.is_alive() and not client.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK):
                process.kill()
        finally:
            process.join()
            client.sendall(process.exitcode.to_bytes(8, "big", signed=True))


def _run(request: dict[str, Any], streams: list[int], command: str) -> None:
    """The forked process: runs what `python` with these arguments would run."""
    gc.freeze()
    atexit._clear()
    end_with_parent()
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin = open(0, closefd=False)
    sys.stdout = open(1, "w", buffering=1, closefd=False)
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.executable = command
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    code = _exit_code(list(request["arguments"]))
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _exit_code(arguments: list[str]) -> int:
    try:
        _run_program(arguments)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _run_program(arguments: list[str]) -> None:
    while arguments[0] in _FLAGS:
        del arguments[0]
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.path.insert(0, "")
        exec(compile(arguments[1], "<string>", "exec"), sys.modules["__main__"].__dict__)
    elif arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
        runpy.run_path(arguments[0], run_name="__main__")
