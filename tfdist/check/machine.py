"""The facts that a process can read about its own machine."""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import os
import platform
import resource
import secrets
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from tfdist._compatibility import KERAS, TENSORFLOW, version_of
from tfdist._version import __version__
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.control import interfaces
from tfdist.errors import TfdistError

# A child reads memory of its parent, as one task of a machine reads another's: neither is the
# ancestor that the Yama security module would let read.
_READER = """
import ctypes, sys
class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
process, address, size = map(int, sys.argv[1:])
here = ctypes.create_string_buffer(size)
to = Piece(ctypes.addressof(here), size)
there = Piece(address, size)
libc = ctypes.CDLL(None, use_errno=True)
libc.process_vm_readv.restype = ctypes.c_ssize_t
read = libc.process_vm_readv(process, ctypes.byref(to), 1, ctypes.byref(there), 1, 0)
print(here.raw.hex() if read == size else "errno %d" % ctypes.get_errno())
"""
_READER_TIMEOUT = 30.0


@dataclasses.dataclass(frozen=True)
class Machine:
    """A process's machine.

    Attributes:
      host: its name.
      versions: of tfdist, TensorFlow, Keras, Python and the kernel.
      library: a digest of the op library; `None` if it does not load.
      open_files: the most file descriptors that the process may have; `None` is no limit.
      locked_memory: the most bytes that it may lock in memory; `None` is no limit.
      cpus: the processors of the machine.
      load: how many programs wanted one of them, on average over the last minute.
      checkpoint_dir: the directory for checkpoints, if one is named.
      free_disk: bytes that are free there.
      problems: the faults, as a sentence each.
      warnings: the weaknesses that prevent nothing.
      encryption: the origin of its certificate; `None` if connections are not encrypted.
    """

    host: str
    versions: dict[str, str]
    library: str | None
    open_files: int | None
    locked_memory: int | None
    cpus: int = 1
    load: float = 0.0
    checkpoint_dir: str | None = None
    free_disk: int | None = None
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    encryption: str | None = None


def look(cluster: Cluster, settings: Settings, checkpoint_dir: str | None) -> Machine:
    """Checks this machine, in a process that may have loaded TensorFlow.

    Args:
      cluster: the job.
      settings: of this process.
      checkpoint_dir: the directory for checkpoints, or `None`.
    """
    problems: list[str] = []
    warnings: list[str] = []
    library = _library(problems)
    _bind(cluster, settings, problems)
    if not settings.peer_memory:
        warnings.append(
            "TFDIST_PEER_MEMORY=0: tasks of this machine send everything through sockets"
        )
    else:
        _share_memory(problems, warnings)
        _read_memory(warnings)
    free = None if checkpoint_dir is None else _free_disk(Path(checkpoint_dir), problems)
    open_files = _limit(resource.RLIMIT_NOFILE)
    needed = 64 + 16 * cluster.world_size
    if open_files is not None and open_files < needed:
        problems.append(
            f"the process may open {open_files} files, and a job of {cluster.world_size} tasks "
            f"may need {needed}: raise the limit ('ulimit -n', LimitNOFILE of systemd)"
        )
    return Machine(
        host=socket.gethostname(),
        versions=_versions(),
        library=library,
        open_files=open_files,
        locked_memory=_limit(resource.RLIMIT_MEMLOCK),
        cpus=os.cpu_count() or 1,
        load=os.getloadavg()[0],
        checkpoint_dir=checkpoint_dir,
        free_disk=free,
        problems=tuple(problems),
        warnings=tuple(warnings),
        encryption=None if settings.tls is None else str(settings.tls),
    )


def _versions() -> dict[str, str]:
    found = {"tfdist": __version__}
    for name, distributions in (("TensorFlow", TENSORFLOW), ("Keras", KERAS)):
        found[name] = version_of(distributions) or "none"
    return found | {"Python": platform.python_version(), "kernel": platform.release()}


def _library(problems: list[str]) -> str | None:
    from tfdist.ops import library

    try:
        library.c_api()
    except TfdistError as error:
        problems.append(str(error))
        return None
    return hashlib.sha256(library.library_path().read_bytes()).hexdigest()[:12]


def _bind(cluster: Cluster, settings: Settings, problems: list[str]) -> None:
    """Binds a port for data connections, where the job would. Joining binds the task's own port."""
    address, port = "127.0.0.1", settings.data_port
    try:
        if not cluster.is_local:
            address, _ = interfaces.data_interface(cluster, settings)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
            listener.listen()
    except OSError as error:
        which = f"port {port} (TFDIST_DATA_PORT)" if port else "a port"
        problems.append(
            f"cannot listen on {which} of {address or 'all interfaces'}: {error.strerror}; free "
            "it, or choose another port or interface (TFDIST_INTERFACE)"
        )


def _share_memory(problems: list[str], warnings: list[str]) -> None:
    try:
        os.close(os.memfd_create("tfdist-check"))
    except OSError as error:
        warnings.append(
            f"the kernel makes no shared memory for tasks of this machine: {error.strerror}; they "
            "send everything through sockets"
        )
    # TensorFlow's and NumPy's helpers use it; containers often have 64 MB.
    shm = Path("/dev/shm")
    if not shm.is_dir() or not os.access(shm, os.W_OK):
        problems.append("/dev/shm cannot be written: mount a tmpfs there")
    elif shutil.disk_usage(shm).free < 64 << 20:
        warnings.append("/dev/shm has less than 64 MB free: docker's --shm-size raises it")


def _read_memory(warnings: list[str]) -> None:
    memory = ctypes.create_string_buffer(secrets.token_bytes(16), 16)
    arguments = [str(os.getpid()), str(ctypes.addressof(memory)), "16"]
    try:
        answer = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _READER, *arguments],
            capture_output=True,
            text=True,
            timeout=_READER_TIMEOUT,
        ).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        answer = str(error)
    if answer != memory.raw.hex():
        warnings.append(
            "processes may not read each other's memory (process_vm_readv: "
            f"{answer or 'no answer'}): tasks of this machine copy twice; kernel.yama.ptrace_scope "
            "must be 0, and a container needs the capability SYS_PTRACE"
        )


def _free_disk(directory: Path, problems: list[str]) -> int | None:
    """Writes a file, and removes it.

    A directory that does not exist is not made: the file is written where it would be made.
    """
    place = next(
        (one for one in (directory, *directory.absolute().parents) if one.exists()), Path()
    )
    try:
        probe = place / f".tfdist-check-{secrets.token_hex(8)}"
        probe.write_bytes(b"")
        probe.unlink()
        return shutil.disk_usage(place).free
    except OSError as error:
        problems.append(f"cannot write checkpoints to {directory}: {error.strerror}")
        return None


def _limit(which: int) -> int | None:
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft
