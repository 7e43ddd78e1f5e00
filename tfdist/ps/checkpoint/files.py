"""Files of the operating system, and of the other file systems of `tf.io.gfile`."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

import tensorflow as tf

from tfdist import atomic_files


def is_local(path: str) -> bool:
    """Whether a path belongs to the operating system's file systems."""
    return "://" not in path


@contextlib.contextmanager
def create(path: str, in_order: bool = False, private: bool = True) -> Iterator[BinaryIO]:
    """Makes a new file, which is synced to disk on exit if it is local.

    A local file is removed if writing fails.

    Args:
      path: the file.
      in_order: the caller only writes, without seeking; the file need not fit in memory.
      private: a local file has mode 0600.
    """
    if is_local(path):
        mode = 0o600 if private else 0o666

        def opener(name: str, flags: int) -> int:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            # Never through an existing link.
            return os.open(name, flags | os.O_EXCL | os.O_NOFOLLOW, mode)

        with open(path, "wb", opener=opener) as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
            except BaseException:
                os.unlink(path)  # an incomplete file is useless
                raise
        return
    if in_order:
        with tf.io.gfile.GFile(path, "wb") as file:
            yield cast(BinaryIO, _Bytes(file))  # the part of it that the caller needs
        return
    # Archives need to seek, which not all file systems of tf.io.gfile support.
    whole = io.BytesIO()
    yield whole
    with tf.io.gfile.GFile(path, "wb") as file:
        file.write(whole.getvalue())


@contextlib.contextmanager
def replaced(path: str, in_order: bool = False, private: bool = True) -> Iterator[BinaryIO]:
    """Makes a file that gets its name when it is complete; on failure nothing of it is left.

    Another process may do the same at the same time: the last one's file stays.

    Args:
      path: the file.
      in_order: as for `create`.
      private: as for `create`.
    """
    folder = path.rpartition("/")[0]
    if is_local(path):
        atomic_files.remove_abandoned(folder)
        new = atomic_files.new_name(path)
    else:
        new = f"{path}.{secrets.token_hex(4)}.tmp"
    try:
        with create(new, in_order, private) as file:
            yield file
        tf.io.gfile.rename(new, path, overwrite=True)
    except BaseException:
        if tf.io.gfile.exists(new):
            tf.io.gfile.remove(new)
        raise
    if is_local(path):
        sync_folder(folder or ".")


def open_whole(path: str) -> BinaryIO:
    """Opens an existing file for reading, with `seek`.

    Raises:
      tf.errors.OpError, OSError: there is no such file, or it is no regular file.
    """
    if is_local(path):
        return _open_regular(path)
    with tf.io.gfile.GFile(path, "rb") as file:
        return io.BytesIO(file.read())


def open_in_order(path: str) -> BinaryIO:
    """Opens an existing file for reading without `seek`; raises as `open_whole`."""
    return _open_regular(path) if is_local(path) else tf.io.gfile.GFile(path, "rb")


def make_folder(folder: str) -> str | None:
    """Makes a folder and its parents, local ones with mode 0700.

    Returns:
      A sentence that says why other users can change the folder's files; `None` if they cannot, or
      if the folder is not local.
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
    # Without O_NONBLOCK, opening a pipe would wait for its other end.
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(f"{path}: expected a file, received something else")
    return file


def sync_folder(folder: str) -> None:
    """Makes the renames in a local folder durable."""
    if not is_local(folder):
        return
    descriptor = os.open(Path(folder), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Bytes:
    """Adapts a `GFile`, which writes only `bytes`."""

    def __init__(self, file: tf.io.gfile.GFile) -> None:
        self._file = file

    def write(self, data: bytes | memoryview) -> int:
        content = bytes(data)
        self._file.write(content)
        return len(content)

    def flush(self) -> None:
        self._file.flush()
