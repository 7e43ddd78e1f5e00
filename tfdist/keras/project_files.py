"""The JSON files of KerasTuner's projects: the same on all workers, written by rank 0 alone.

All workers search with an oracle of their own, which reads and writes files of one directory:

    rank 0      reads | meet | deletes, writes | trial 0 | writes            killed
    rank 1      reads | meet | keeps           | trial 0 | keeps     meet | rank 0: writes | trial 1
    newcomer                   takes what the founders have read, keeps ...

So the oracles begin with the same state, and no worker reads a file that another worker is writing.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import glob
import os
import secrets
from collections.abc import Callable

import tensorflow as tf


class ProjectFiles:
    """The files of the projects that one process has opened.

    Only names that end in ".json" count as files here.

    Args:
      delete: deletes a directory with all its files.
    """

    def __init__(self, delete: Callable[[str], None]) -> None:
        self._delete = delete
        self._texts: dict[str, str] = {}
        self._projects: set[str] = set()
        # Deletions that rank 0 may not have done yet.
        self._undeleted: dict[str, None] = {}
        self._unwritten: dict[str, None] = {}

    def open(self, project: str, texts: dict[str, str]) -> None:
        """Begins to keep a project's files.

        Args:
          project: its directory.
          texts: the files' contents, by their paths in it.
        """
        self._projects.add(_absolute(project))
        for name, text in texts.items():
            self._texts[_absolute(os.path.join(project, name))] = text

    def is_open(self, project: str) -> bool:
        """Whether a directory is a project that was opened."""
        return _absolute(project) in self._projects

    def has(self, path: str) -> bool:
        """Whether a path is one of an open project, or below it."""
        path = _absolute(path)
        return any(path == each or path.startswith(each + os.sep) for each in self._projects)

    def keeps(self, path: str) -> bool:
        """Whether a path belongs to a file which is kept here if it exists."""
        return str(path).endswith(".json") and self.has(path)

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        return _absolute(path) in self._texts

    def matching(self, pattern: str) -> list[str]:
        """The paths of the files that match a pattern of `fnmatch`, sorted."""
        return sorted(fnmatch.filter(self._texts, _absolute(pattern)))

    def read(self, path: str) -> str:
        """Returns the content of a file.

        Raises:
          FileNotFoundError: there is none.
        """
        text = self._texts.get(_absolute(path))
        if text is None:
            raise FileNotFoundError(f"expected a file {path!r}, which this search has not written")
        return text

    def write(self, path: str, text: str, *, leads: bool) -> None:
        """Writes a file.

        Args:
          path: its path.
          text: its content.
          leads: whether this process is rank 0, which writes to the disk.
        """
        path = _absolute(path)
        self._texts[path] = text
        self._unwritten[path] = None
        if leads:
            self.finish()

    def delete(self, project: str, *, leads: bool, is_member: bool) -> None:
        """Deletes a project's files.

        Args:
          project: its directory.
          leads: whether this process is rank 0, which deletes on the disk.
          is_member: whether rank 0 is at the same place of the program. A process that has come
            later must not delete files that the members have written since.
        """
        project = _absolute(project)
        for path in [path for path in self._texts if path.startswith(project + os.sep)]:
            del self._texts[path]
            self._unwritten.pop(path, None)
        if is_member:
            self._undeleted[project] = None
        if leads:
            self.finish()

    def finish(self) -> None:
        """Does on the disk what rank 0 may not have done; rank 0 calls it."""
        for project in list(self._undeleted):
            with contextlib.suppress(tf.errors.NotFoundError):
                self._delete(project)
            del self._undeleted[project]
        for path in list(self._unwritten):
            write_whole(path, functools.partial(_write, self._texts[path]))
            del self._unwritten[path]

    @property
    def is_finished(self) -> bool:
        """Whether this process knows that the files on the disk are these."""
        return not self._undeleted and not self._unwritten

    def settle(self) -> None:
        """Notes that rank 0 has done everything up to this place of the program."""
        self._undeleted.clear()
        self._unwritten.clear()


def texts_of(project: str) -> dict[str, str]:
    """Returns the contents of a project's files, by their paths in it."""
    found = {}
    for pattern in ("*.json", os.path.join("trial_*", "*.json")):
        for path in tf.io.gfile.glob(os.path.join(project, pattern)):
            with tf.io.gfile.GFile(path, "r") as file:
                found[os.path.relpath(path, project)] = file.read()
    return found


def _write(text: str, path: str) -> None:
    with tf.io.gfile.GFile(path, "w") as file:
        file.write(text)


def write_whole(path: str, write: Callable[[str], None]) -> None:
    """Writes a file under another name first, so that it is never there in part.

    Args:
      path: where the file is to be; its directory is made. On remote file systems it is written
        in its place.
      write: writes the file to the path that it is given, which has the same endings.
    """
    path = _absolute(path)
    folder, name = os.path.split(path)
    tf.io.gfile.makedirs(folder)
    if _is_remote(path):
        write(path)
        return
    # The only other writer here is a former rank 0, which was killed or stopped.
    former = os.path.join(glob.escape(folder), f".incomplete-*-{glob.escape(name)}")
    for abandoned in glob.glob(former):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(abandoned)
    new = os.path.join(folder, f".incomplete-{secrets.token_hex(8)}-{name}")
    try:
        write(new)
        os.replace(new, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)


def _is_remote(path: str) -> bool:
    return "://" in path


def _absolute(path: str) -> str:
    path = str(path)
    return path if _is_remote(path) else os.path.abspath(path)
