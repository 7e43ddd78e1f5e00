"""Files that are replaced at once: a reader finds the former content or the new one, whole.

A process writes a new file in the same folder, under a name that no other process uses, and renames
it:

    model.keras                                         readers see this
    .incomplete-MACHINE-PID-RANDOM-JOB.TERM-model.keras one process writes this

A process that is killed leaves such a file. The next process that replaces `model.keras` removes
it: if it is of a process of the same machine that lives no more, or has not been written to for an
hour.

**Terms.** Where one process takes over from another, as in an elastic job, each has a *term*. A
process that was stopped in its term, and continues in a later one, must not replace the file of the
later term:

    process of term 6                       process of term 7
    creates .incomplete-...6-NAME
    finds no later term in NAME
        (is stopped)                        creates .incomplete-...7-NAME
                                            finds no later term in NAME
                                            renames .incomplete-...7-NAME to NAME
                                            removes .incomplete-...6-NAME
        (continues)                         sees that NAME is still its own file, else begins again
    renaming fails: there is no such file

The file system decides, wherever the process of term 6 was stopped. If its new file exists when the
other process looks for such files, it is removed, or was renamed before: then the other process
sees that NAME is not its own file. If it is created later, its process looks at NAME later still,
and finds term 7.

Two cases remain. Until a process of term 7 has replaced NAME, one of term 6 may do so. A process of
term 7 that is killed between renaming and removing leaves the other file. NAME is whole in both.

All processes must see each other's changes of the folder at once: on any local file system, and on
a shared file system that does not cache folders (NFS: `lookupcache=none`). Without hard links (FAT,
some shared file systems) a replacement between renaming and removing is not seen.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import hashlib
import logging
import os
import re
import secrets
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

_log = logging.getLogger("tfdist")
_PREFIX = ".incomplete-"
_INCOMPLETE = re.compile(
    re.escape(_PREFIX) + r"([0-9a-f]{8})-(\d+)-[0-9a-f]{8}-([0-9a-f]{8})\.(\d+)-(.+)", re.DOTALL
)
# A name may have 255 bytes, and what comes before it here up to 75.
_MAX_ENDING = 180
# Seconds without a write, after which no process writes a file any more.
_ABANDONED = 3600.0


@dataclasses.dataclass(frozen=True)
class Term:
    """The time in which one process alone writes the files of a job.

    Attributes:
      job: identifies the job.
      number: grows from each term to the next one.
    """

    job: str
    number: int

    def is_before(self, other: Term | None) -> bool:
        """Whether `other` is a later term of the same job."""
        return other is not None and self.job == other.job and self.number < other.number

    @property
    def _in_names(self) -> tuple[str, int]:
        return _digest(self.job), self.number


def replace(
    path: str,
    write: Callable[[str], object],
    *,
    needs: int = 0,
    former: str | None = None,
    term: Term | None = None,
    term_of: Callable[[str], Term | None] = lambda path: None,
) -> bool:
    """Replaces a local file, or makes it; on failure nothing of it is left.

    Args:
      path: the file.
      write: writes the new file, of which it is given the path. Its name has the ending of `path`.
      needs: the bytes that must be free; without them `write` is not called.
      former: where the file that is replaced is kept.
      term: the term of this process; `None` if no other process may take over.
      term_of: returns the term in which an existing file was written; `None` if it is unknown.

    Returns:
      Whether it has; it has not if a process of a later term has replaced the file.

    Raises:
      OSError: the file system refused, because it is full, for instance; names the file.
      Exception: the exception of `write` for another reason.
    """
    folder, name = os.path.split(path)
    incomplete = _Incomplete(folder, name, term)
    try:
        with _naming(path):
            incomplete.remove_abandoned()
            _check_free(folder, needs, path)
        new = incomplete.name()
        try:
            with _naming(path):
                write(new)
                with open(new, "rb+") as file:
                    os.fsync(file.fileno())
        except Exception:
            # Its process may have removed what this one was writing.
            if _is_superseded(path, term, term_of):
                return False
            raise
        with _naming(path):
            return _rename(new, path, incomplete, former, term, term_of)
    finally:
        incomplete.remove_own()


def new_name(path: str) -> str:
    """Returns the path of a new file in the folder of `path`, which no other process uses."""
    return _Incomplete(*os.path.split(path), None).name()


def remove_abandoned(folder: str) -> None:
    """Removes all new files in a folder that no process writes any more."""
    _Incomplete(folder, None, None).remove_abandoned()


def _rename(
    new: str,
    path: str,
    incomplete: _Incomplete,
    former: str | None,
    term: Term | None,
    term_of: Callable[[str], Term | None],
) -> bool:
    """Gives a complete file its name; see the module. Returns whether it has."""
    while True:
        try:
            # Another name of the new file, by which it is still known when the first one is `path`.
            # It must exist before the term of `path` is looked at.
            renamed = None if term is None else incomplete.link(new)
            if _is_superseded(path, term, term_of):
                return False
            if former is not None and os.path.exists(path):
                _keep(path, former, incomplete)
            former = None
            os.replace(renamed or new, path)
        except FileNotFoundError:
            if _is_superseded(path, term, term_of):
                return False
            raise
        _sync_folder(os.path.dirname(path))
        if term is None:
            return True
        incomplete.remove_of_former_terms()
        if renamed is None or _is_same(new, path) or not _is_of_former(path, term, term_of):
            return True


def _check_free(folder: str, needs: int, path: str) -> None:
    """Raises OSError if fewer bytes than `needs` are free; a few file systems do not tell."""
    about = os.statvfs(folder or ".")
    free = about.f_bavail * about.f_frsize
    if about.f_blocks and free < needs:
        text = f"cannot be written: expected {needs:,} bytes of free space, found {free:,}"
        raise OSError(errno.ENOSPC, text, path)


def _is_superseded(path: str, term: Term | None, term_of: Callable[[str], Term | None]) -> bool:
    if term is None or not os.path.exists(path):
        return False
    found = term_of(path)
    if not term.is_before(found):
        return False
    _log.warning(
        "%s is left as it is: it was written in generation %d of this job, after the members had "
        "continued without this process, which was in generation %d",
        *(path, found.number if found else 0, term.number),
    )
    return True


def _is_of_former(path: str, term: Term, term_of: Callable[[str], Term | None]) -> bool:
    found = term_of(path)
    return found is not None and found.is_before(term)


def _is_same(path: str, other: str) -> bool:
    try:
        return os.path.samefile(path, other)
    except FileNotFoundError:
        return False


def _keep(path: str, former: str, incomplete: _Incomplete) -> None:
    """Gives a file another name, too; where that is impossible, the other name only."""
    linked = incomplete.link(path)
    os.replace(linked or path, former)


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Errors of the file system name the file that was to be replaced."""
    try:
        yield
    except OSError as error:
        if error.filename == path:
            raise
        reason = os.strerror(error.errno) if error.errno else str(error)
        named = OSError(error.errno or errno.EIO, f"cannot be written: {reason}", path)
        raise named from error


def _sync_folder(folder: str) -> None:
    """Makes the renames in a folder durable."""
    descriptor = os.open(folder or ".", os.O_RDONLY)
    try:
        # Some file systems cannot.
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Incomplete:
    """The new files of a file to be replaced: this process's, and the files that others have left.

    Args:
      folder: the file's.
      name: the file's; `None` for the new files of all files.
      term: the term of this process.
    """

    def __init__(self, folder: str, name: str | None, term: Term | None) -> None:
        self._folder = folder
        self._ending = None if name is None else _ending(name)
        self._term = Term("", 0) if term is None else term
        self._own: list[str] = []

    def name(self) -> str:
        """Returns the path of a file that does not exist."""
        job, number = self._term._in_names
        writer = f"{machine_id()}-{os.getpid()}-{secrets.token_hex(4)}-{job}.{number}"
        self._own.append(os.path.join(self._folder, f"{_PREFIX}{writer}-{self._ending or ''}"))
        return self._own[-1]

    def link(self, path: str) -> str | None:
        """Returns another path of an existing file; `None` if the file system has no hard links."""
        link = self.name()
        try:
            os.link(path, link)
        except FileNotFoundError:
            raise
        except OSError:
            return None
        return link

    def remove_own(self) -> None:
        """Removes the files of `name` and `link` that are left."""
        for path in self._own:
            # A failed writer may hold it open, which would keep the space.
            with contextlib.suppress(OSError):
                if os.stat(path).st_nlink == 1:
                    os.truncate(path, 0)
            _remove(path)

    def remove_abandoned(self) -> None:
        """Removes files that no process writes any more."""
        others = []
        for path, machine, process, _ in self._of_others():
            if machine == machine_id() and not _lives(process):
                _remove(path)
            else:
                others.append(path)
        if not others:
            return
        probe = self.name()
        with contextlib.suppress(OSError):
            # The time of the file system, which may be another machine's.
            with open(probe, "xb"):
                pass
            now = os.stat(probe).st_mtime
            for path in others:
                if now - os.stat(path).st_mtime > _ABANDONED:
                    _remove(path)
        _remove(probe)

    def remove_of_former_terms(self) -> None:
        """Removes files of former terms of the same job, whose processes may live."""
        job, number = self._term._in_names
        for path, _, _, (other_job, other_number) in self._of_others():
            if other_job == job and other_number < number:
                _remove(path)

    def _of_others(self) -> Iterator[tuple[str, str, int, tuple[str, int]]]:
        """Paths, machines, processes and terms of the new files of the same file."""
        for found in os.listdir(self._folder or "."):
            parts = _INCOMPLETE.fullmatch(found)
            path = os.path.join(self._folder, found)
            if parts is None or path in self._own:
                continue
            if self._ending is None or parts[5] == self._ending:
                yield path, parts[1], int(parts[2]), (parts[3], int(parts[4]))


def _ending(name: str) -> str:
    """The end of a name, by which writers know the format."""
    while len(os.fsencode(name)) > _MAX_ENDING:
        name = name[1:]
    return name


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


@functools.cache
def machine_id() -> str:
    """Identifies a set of processes whose ids differ: a machine since its start, or a container."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return _digest("\n".join(parts))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
