"""The times of the input files: a file that was rewritten with its former size is noticed by them.

A worker notes the times when it starts, and compares them when it begins to read a part and before
it commits it. The first worker's are also in the description of the job, for later starts. Copies
have times of their own, so a later start compares only files that have the same path, and are on
the same machine or have the same inode, as on a network file system.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import shlex
from collections.abc import Mapping, Sequence
from concurrent import futures
from typing import Any

import tensorflow as tf

from tfdist.atomic_files import machine_id
from tfdist.errors import PredictionError

_THREADS = 8


@dataclasses.dataclass(frozen=True)
class NotedTimes:
    """The input files in the description of a job.

    Attributes:
      machine, folder: where the files were.
      times: of each file the time of its last change, in nanoseconds, and its inode; or 0.
    """

    machine: str
    folder: str
    times: Sequence[Sequence[int]]

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> NotedTimes:
        """Returns the times in a description; raises ValueError or TypeError for others."""
        noted = cls(**found)
        return dataclasses.replace(
            noted, times=[(int(time), int(ino)) for time, ino in noted.times]
        )


class InputFiles:
    """The input files of this worker, as they are when it starts.

    Args:
      paths: of the files.

    Raises:
      FileNotFoundError: a file has vanished.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        with futures.ThreadPoolExecutor(_THREADS) as pool:
            times = list(pool.map(_time_and_inode, paths))
        folder = os.path.dirname(os.path.commonprefix([*paths]))
        self.noted = NotedTimes(machine_id(), _absolute(folder), times)

    def compare(self, noted: NotedTimes) -> None:
        """Compares all files with the files that the job has begun with.

        Raises:
          PredictionError: a file was changed since; names it.
        """
        own = self.noted
        if noted.folder != own.folder or len(noted.times) != len(own.times):
            return
        is_here = noted.machine == own.machine
        for path, before, now in zip(self._paths, noted.times, own.times, strict=True):
            if now[0] != before[0] and (is_here or now[1] == before[1]):
                raise PredictionError(_changed(path, before[0], now[0]))

    def check(self, file: int) -> None:
        """Compares a file with itself when this worker has started.

        Raises:
          PredictionError: it was changed since.
          FileNotFoundError: it has vanished.
        """
        before, now = self.noted.times[file][0], _time_and_inode(self._paths[file])[0]
        if now != before:
            raise PredictionError(_changed(self._paths[file], before, now))


def _absolute(path: str) -> str:
    return path if "://" in path else os.path.abspath(path)


def _time_and_inode(path: str) -> tuple[int, int]:
    if "://" in path:
        try:
            return int(tf.io.gfile.stat(path).mtime_nsec), 0
        except tf.errors.NotFoundError as error:
            raise FileNotFoundError(f"{path} has vanished: {error.message}") from None
    try:
        found = os.stat(path)  # TensorFlow's has whole seconds
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} has vanished") from None
    return found.st_mtime_ns, found.st_ino


def _changed(path: str, before: int, now: int) -> str:
    return (
        f"{path}: expected the file that the job has begun with, last changed at {_text(before)}, "
        f"received a file that was changed at {_text(now)}: the file has changed since the job has "
        "begun, and its records may be others. Expected the former file, or a new folder. If its "
        "bytes are the same, as after a touch, give it its time again: "
        f"touch -d '{_text(before)}' {shlex.quote(path)}"
    )


def _text(time: int) -> str:
    """Returns a time in nanoseconds as a text, which `touch` takes."""
    seconds, rest = divmod(time, 1_000_000_000)
    whole = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    return f"{whole:%Y-%m-%d %H:%M:%S}.{rest:09d} UTC"
