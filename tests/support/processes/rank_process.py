"""The code that one rank's process runs in the multi-process tests; ranks.py has an overview."""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import gc
import importlib
import importlib.util
import marshal
import os
import pickle
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tensorflow.python.platform import _pywrap_stacktrace_handler

_PR_SET_PDEATHSIG = 1
_THREADS = 2


@dataclass(frozen=True)
class Assignment:
    """The parameters of one rank's process."""

    rank: int
    size: int
    addresses: tuple[str, ...]
    environment: Mapping[str, str]
    source: Path
    code: bytes  # the test module's, compiled and marshalled: compiling it in every rank is slow
    module: str
    qualname: str
    arguments: bytes  # pickled (args, kwargs); read only after the test module is loaded
    tmp_path: Path
    output: Path
    stacks: Path


@dataclass
class RankContext:
    """The context of a test body: its rank, and synchronization with other ranks without tfdist.

    Attributes:
      rank: this process's rank.
      size: the number of processes that run the body.
      addresses: every process's "host:port" as in TF_CONFIG, by rank; the ports are not bound yet.
      tmp_path: a directory that all ranks of the test share.
    """

    rank: int
    size: int
    addresses: tuple[str, ...]
    tmp_path: Path
    _connection: Connection
    _inbox: list[tuple[str, str, Any]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.size}"

    def report(self, key: str, value: Any = None) -> None:
        """Reports progress to the parent, where `ranks.wait_for(rank, key, value)` returns."""
        self._send("report", key, value)

    def barrier(self, name: str = "", timeout: float = 30.0) -> None:
        """Waits, at most `timeout` seconds, until every rank has reached the barrier `name`."""
        self._send("barrier", name, None)
        self._receive("barrier", name, timeout)

    def wait_for(self, key: str, timeout: float = 30.0) -> Any:
        """Waits, at most `timeout` seconds, for the parent's `ranks.send(rank, key, value)`."""
        return self._receive("send", key, timeout)

    def _send(self, kind: str, key: str, value: Any) -> None:
        with self._lock:
            self._connection.send((kind, key, value, time.monotonic()))

    def _receive(self, kind: str, key: str, timeout: float) -> Any:
        deadline = time.monotonic() + timeout
        while True:
            for message in self._inbox:
                if message[:2] == (kind, key):
                    self._inbox.remove(message)
                    return message[2]
            if not self._connection.poll(max(0.0, deadline - time.monotonic())):
                raise TimeoutError(f"{self}: {kind} {key!r} did not come within {timeout:g} s")
            self._inbox.append(self._connection.recv())


def main(assignment: Assignment, connection: Connection) -> None:
    """Runs one rank: prepares the process, calls the body, sends its result or its failure."""
    # Excludes the objects of TensorFlow's import, whose traversal costs 0.1 s per collection.
    gc.freeze()
    # Handlers inherited from the fork server belong to it; those the body registers are run below.
    atexit._clear()
    end_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _redirect_output(assignment.output)
    # The C++ side of a crash goes to the rank's output, after the Python stacks.
    _pywrap_stacktrace_handler.InstallStacktraceHandler()
    with open(assignment.stacks, "w") as stacks:
        # The parent sends SIGABRT to a hanging rank, which then writes its stacks and dies.
        faulthandler.enable(file=stacks, all_threads=True)
        context = RankContext(
            rank=assignment.rank,
            size=assignment.size,
            addresses=assignment.addresses,
            tmp_path=assignment.tmp_path,
            _connection=connection,
        )
        exit_code = _run(assignment, context)
        # multiprocessing leaves a child by os._exit; a user's script would run these.
        atexit._run_exitfuncs()
        faulthandler.disable()
    sys.exit(exit_code)


def _run(assignment: Assignment, context: RankContext) -> int:
    try:
        os.environ.clear()
        os.environ.update(assignment.environment)
        _limit_threads()
        body = _load_body(assignment)
        args, kwargs = pickle.loads(assignment.arguments)
        result = pickle.dumps(body(context, *args, **kwargs))
    except BaseException as error:
        context._send("failure", "", _describe(error))
        code = error.code if isinstance(error, SystemExit) else 1
        return code if isinstance(code, int) else 1
    context._send("result", "", result)
    return 0


def end_with_parent() -> None:
    """No rank, not even a stopped one, outlives a parent that was killed.

    The fork server ends when no process holds its pipe any more, and the ranks end with it. But it
    passes that pipe to every rank, for processes that the rank may fork; there is no public way to
    decline it.
    """
    server = forkserver._forkserver
    pipe, server._forkserver_alive_fd = server._forkserver_alive_fd, None
    if pipe is not None:
        os.close(pipe)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _redirect_output(path: Path) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    # Descriptors, not sys.stdout: C++ code and child processes write there too.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
    sys.stdout = open(1, "w", buffering=1, errors="replace", closefd=False)
    sys.stderr = open(2, "w", buffering=1, errors="replace", closefd=False)


def _limit_threads() -> None:
    """Keeps TensorFlow's pools small, so that four ranks live on two cores."""
    for name in ("TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS"):
        os.environ.setdefault(name, str(_THREADS))
    if "tensorflow" in sys.modules:
        import tensorflow as tf

        # Fails, rightly, if the fork server has run an op: its threads would be missing here.
        tf.config.threading.set_inter_op_parallelism_threads(_THREADS)
        tf.config.threading.set_intra_op_parallelism_threads(_THREADS)


def _load_body(assignment: Assignment) -> Callable[..., Any]:
    if assignment.module not in sys.modules:
        _load_module(assignment.source, assignment.module, assignment.code)
    body: Any = sys.modules[assignment.module]
    for name in assignment.qualname.split("."):
        body = getattr(body, name)
    return getattr(body, "rank_body", body)


def _load_module(source: Path, name: str, code: bytes) -> None:
    """Makes a test module under the name pytest gave it: so its classes can be pickled."""
    if package := name.rpartition(".")[0]:
        importlib.import_module(package)
    spec = importlib.util.spec_from_file_location(name, source)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    exec(marshal.loads(code), module.__dict__)


def _describe(error: BaseException) -> dict[str, Any]:
    # The first two frames are this file's own.
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    lines = traceback.format_exception(type(error), error, frames or error.__traceback__)
    return {
        "exception": type(error).__name__,
        "bases": tuple(base.__name__ for base in type(error).__mro__),
        "message": str(error),
        "traceback": "".join(lines),
    }
