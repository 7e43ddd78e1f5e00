"""The jobs of this user on this machine, as their launchers register them.

Each has an entry in the user's own directory, and a file with its output:

    /tmp/tfdist-1000/4711-3fa2.job    the entry, JSON without secrets
    /tmp/tfdist-1000/4711-3fa2.log    the lines of all tasks; ...log.1 the lines before them
    /tmp/tfdist-1000/4711-3fa2.states the last states of its tasks, for the dashboard

A launcher holds a lock on its entry. An entry without a lock is of a job that has ended: it has the
exit code, or none if the launcher was killed. Entries of ended jobs are kept for a day.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import secrets
import shutil
import signal
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist.config.job_file import user_directory
from tfdist.errors import ClusterConfigError

_ENTRY, _LOG, _STATES = ".job", ".log", ".states"
_KEPT = 24 * 3600.0  # seconds after the end
_MAX_BYTES = 1 << 20

# Notes the exit code of a job, and the exit codes of its tasks by their names.
NoteEnd = Callable[[int, Mapping[str, int]], None]


@dataclasses.dataclass(frozen=True)
class JobEntry:
    """A job.

    Attributes:
      name: identifies it among this user's jobs.
      pid: of its launcher.
      command: the script or module, and its arguments.
      directory: in which it was started.
      tasks: their names.
      job_file: the path of its job file.
      began: when it was started, in seconds since 1970.
      ended: the same for its end; None while it runs, or if its launcher was killed.
      code: its exit code.
      exits: the exit codes of its tasks, by their names, once it has ended.
      is_running: whether its launcher lives.
    """

    name: str
    pid: int
    command: Sequence[str]
    directory: str
    tasks: Sequence[str]
    job_file: str
    began: float
    ended: float | None = None
    code: int | None = None
    exits: Mapping[str, int] = dataclasses.field(default_factory=dict)
    is_running: bool = dataclasses.field(default=False, compare=False)

    @property
    def log(self) -> Path | None:
        """The file with its output; None if this user has no directory."""
        folder = user_directory()
        return None if folder is None else folder / f"{self.name}{_LOG}"

    @property
    def states(self) -> Path | None:
        """The directory with its tasks' last states; None if this user has no directory."""
        return state_directory(self.name)


def state_directory(name: str) -> Path | None:
    """Returns the directory in which the tasks of a job leave their last states, by its name.

    Returns:
      Its path, which need not exist; None if this user has no directory.
    """
    folder = user_directory()
    return None if folder is None else folder / f"{name}{_STATES}"


def new_name() -> str:
    """Returns a name for a job of this process."""
    return f"{os.getpid()}-{secrets.token_hex(2)}"


@contextlib.contextmanager
def registered(entry: JobEntry) -> Iterator[NoteEnd]:
    """Registers a job for the duration of a `with` block, and removes what is too old.

    Yields:
      A function that notes the exit codes. It does nothing if this user has no directory.

    Raises:
      OSError: the entry cannot be written.
    """
    folder = user_directory()
    if folder is None:
        yield lambda code, exits: None
        return
    _remove_old(folder)
    path = folder / f"{entry.name}{_ENTRY}"
    # Under another name until it is locked: it would count as one of an ended job.
    created = folder / f".{entry.name}{_ENTRY}"
    descriptor = os.open(created, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w") as file:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        _write(file, entry)
        created.rename(path)

        def end(code: int, exits: Mapping[str, int]) -> None:
            _write(file, dataclasses.replace(entry, ended=time.time(), code=code, exits=exits))

        yield end


def _write(file: Any, entry: JobEntry) -> None:
    fields = dataclasses.asdict(entry)
    del fields["is_running"]
    file.seek(0)
    json.dump(fields, file)
    file.truncate()
    file.flush()


def jobs() -> list[JobEntry]:
    """Returns the jobs of this user, the newest first."""
    folder = user_directory()
    found = [] if folder is None else map(_read, folder.glob(f"[0-9]*{_ENTRY}"))
    return sorted(
        (entry for entry in found if entry is not None), key=lambda job: job.began, reverse=True
    )


def job_of(file: Path | None) -> JobEntry:
    """Returns the job with a job file; with None the only job that runs.

    Raises:
      ClusterConfigError: there is none, or there are several.
    """
    known = jobs()
    if file is None:
        return _only([job for job in known if job.is_running])
    where = str(file.absolute())
    found = next((job for job in known if where in (job.job_file, _path(job))), None)
    if found is None:
        raise ClusterConfigError(
            f"--job: expected the file of one of your jobs, as 'tfdist jobs' lists them, received "
            f"{file}"
        )
    return found


def tell(job: JobEntry, number: int) -> None:
    """Sends a signal to the launcher of a job; nothing happens if it has ended."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(job.pid)
        try:
            # Another process may have its number by now; from here on the descriptor is safe.
            if job_of(Path(job.job_file)).is_running:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def _path(job: JobEntry) -> str:
    return str(Path(job.job_file).absolute())


def _only(running: Sequence[JobEntry]) -> JobEntry:
    if not running:
        raise ClusterConfigError(
            "--job: expected a file of 'tfdist run', or one running job of yours on this machine, "
            "received none: 'tfdist jobs' lists them"
        )
    if len(running) > 1:
        files = ", ".join(job.job_file for job in running)
        raise ClusterConfigError(
            f"--job: expected the file of one of your {len(running)} running jobs: {files}"
        )
    return running[0]


def _read(path: Path) -> JobEntry | None:
    """Returns the entry in a file; None if it is none, or gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        with open(descriptor, "rb") as file:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
                return None
            is_running = not _can_lock(descriptor)
            fields = json.loads(file.read(_MAX_BYTES))
        entry = JobEntry(**fields)
        is_usable = (
            all(map(_is_text, (entry.name, entry.directory, entry.job_file)))
            and all(map(_is_text, (*entry.command, *entry.tasks)))
            and type(entry.pid) is int
            and isinstance(entry.began, int | float)
            and isinstance(entry.ended, int | float | None)
            and isinstance(entry.code, int | None)
            and all(isinstance(code, int) for code in entry.exits.values())
        )
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    return dataclasses.replace(entry, is_running=is_running) if is_usable else None


def _is_text(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value


def _can_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return True


def _remove_old(folder: Path) -> None:
    """Removes the entries and the output of jobs that have ended long ago."""
    for path in folder.glob(f"[0-9]*{_ENTRY}"):
        with contextlib.suppress(OSError):
            entry = _read(path)
            is_running = entry is not None and entry.is_running
            if not is_running and time.time() - path.stat().st_mtime > _KEPT:
                for left in folder.glob(f"{path.stem}{_LOG}*"):
                    left.unlink()
                shutil.rmtree(path.with_suffix(_STATES), ignore_errors=True)
                path.unlink()
