"""Files that servers write: on a disk, or wherever `tf.io.gfile` knows to write."""

from __future__ import annotations

import contextlib
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import tensorflow as tf


def is_local(path: str) -> bool:
    """Whether a path is one of the operating system's."""
    return "://" not in path


@contextlib.contextmanager
def create(path: str, in_order: bool = False, private: bool = True) -> Iterator[BinaryIO]:
    """A new file, which is on the disk afterwards, as far as its file system can tell.

    Where that fails, it is removed if it is one of the operating system's.

    Args:
      path: where.
      in_order: it is only written to, from its beginning to its end, and need not fit in memory.
      private: no other user may read it, if it is one of the operating system's.
    """
    if is_local(path):
        mode = 0o600 if private else 0o666

        def opener(name: str, flags: int) -> int:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            # Not through a link that somebody has put there.
            return os.open(name, flags | os.O_EXCL | os.O_NOFOLLOW, mode)

        with open(path, "wb", opener=opener) as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
            except BaseException:
                os.unlink(path)  # an incomplete file would only fill the disk
                raise
        return
    if in_order:
        with tf.io.gfile.GFile(path, "wb") as file:
            yield _Bytes(file)
        return
    # Archives need positions, which not all file systems of tf.io.gfile know.
    whole = io.BytesIO()
    yield whole
    with tf.io.gfile.GFile(path, "wb") as file:
        file.write(whole.getvalue())


def open_whole(path: str) -> BinaryIO:
    """An existing file, in which one can go to any position.

    Raises:
      tf.errors.OpError, OSError: there is none, or it is a pipe or the like.
    """
    if is_local(path):
        return _open_regular(path)
    with tf.io.gfile.GFile(path, "rb") as file:
        return io.BytesIO(file.read())


def open_in_order(path: str) -> BinaryIO:
    """An existing file, to be read from its beginning to its end; raises as `open_whole`."""
    return _open_regular(path) if is_local(path) else tf.io.gfile.GFile(path, "rb")


def make_folder(folder: str) -> str | None:
    """Makes a folder, and those above it, for this user alone.

    Returns:
      Why others could change what is in it, as a sentence; `None` if they cannot, or if it is none
      of the operating system's.
    """
    if not is_local(folder):
        tf.io.gfile.makedirs(folder)
        return None
    os.makedirs(folder, mode=0o700, exist_ok=True)
    about = os.stat(folder)
    if about.st_uid not in (os.geteuid(), 0):
        return (
            f"{folder} belongs to another user (uid {about.st_uid}), who can change what is in it"
        )
    if about.st_mode & 0o022:
        return f"{folder} can be written by others (mode {about.st_mode & 0o777:o})"
    return None


def _open_regular(path: str) -> BinaryIO:
    # To open a pipe would wait for its other end.
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(f"{path}: expected a file, received something else")
    return file


def sync_folder(folder: str) -> None:
    """Makes a new name last."""
    if not is_local(folder):
        return
    descriptor = os.open(Path(folder), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Bytes:
    """A file of TensorFlow, which writes nothing but `bytes`."""

    def __init__(self, file: tf.io.gfile.GFile) -> None:
        self._file = file

    def write(self, data: bytes | memoryview) -> int:
        content = bytes(data)
        self._file.write(content)
        return len(content)

    def flush(self) -> None:
        self._file.flush()
