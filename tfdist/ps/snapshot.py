"""Snapshots of parameter servers: what a server writes, and what it goes on from.

```
  checkpoint_dir/
    manifest.json                      of the latest checkpoint that all servers completed
    ps-0-of-2/snapshot-00000007.npz    one file a server and checkpoint; the last two are kept
    ps-1-of-2/snapshot-00000007.npz
```

A file is a NumPy archive with a checksum of every array (`numpy.load` reads it). It appears under
its name only when it is complete.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
import tensorflow as tf

from tfdist.errors import CheckpointError

_log = logging.getLogger("tfdist.ps")
_FILE = re.compile(r"snapshot-(\d{8})\.npz")
_KEPT = 2
_FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """What a server holds.

    Args:
      number: of the checkpoint; later ones have larger numbers.
      shards: flat arrays by name.
      progress: opaque numbers, from which the server knows what it has applied.
    """

    number: int
    shards: Mapping[str, np.ndarray]
    progress: np.ndarray


def directory(root: str, server: int, servers: int) -> str:
    """Returns where a server keeps its snapshots."""
    return f"{root.rstrip('/')}/ps-{server}-of-{servers}"


def prepare(folder: str) -> None:
    """Makes the folder, and makes sure that files can be written there.

    Raises:
      CheckpointError: they cannot; names the folder and the reason.
    """
    probe = f"{folder}/probe"
    try:
        tf.io.gfile.makedirs(folder)
        with _create(probe) as file:
            file.write(b"tfdist")
        tf.io.gfile.remove(probe)
    except (tf.errors.OpError, OSError) as error:
        raise CheckpointError(
            f"checkpoint_dir: expected a place to write {folder}, received {error}"
        ) from error


def write(folder: str, snapshot: Snapshot) -> dict[str, object]:
    """Writes a snapshot and removes those that are too old.

    Returns:
      {"file": its path, "bytes": its size}.

    Raises:
      tf.errors.OpError, OSError: the file system refused.
    """
    tf.io.gfile.makedirs(folder)
    path = f"{folder}/snapshot-{snapshot.number:08d}.npz"
    scratch = f"{path}.tmp"
    names = list(snapshot.shards)
    arrays = {f"shard_{i}": _plain(snapshot.shards[name]) for i, name in enumerate(names)}
    described = {
        "format": _FORMAT,
        "number": snapshot.number,
        "shards": [[name, snapshot.shards[name].dtype.name] for name in names],
    }
    with _create(scratch) as file:
        np.savez(file, about=_text(described), progress=snapshot.progress, **arrays)
    tf.io.gfile.rename(scratch, path, overwrite=True)
    _sync_folder(folder)
    for old in _numbers(folder)[:-_KEPT]:
        tf.io.gfile.remove(f"{folder}/snapshot-{old:08d}.npz")
    return {"file": path, "bytes": tf.io.gfile.stat(path).length}


def read_latest(folder: str) -> Snapshot | None:
    """Reads the latest snapshot that is whole; `None` if there is no file.

    Of each that is not, the log says why.

    Raises:
      CheckpointError: there are files, and none is whole.
    """
    problems = []
    for number in reversed(_numbers(folder)):
        path = f"{folder}/snapshot-{number:08d}.npz"
        try:
            return read(path)
        except CheckpointError as error:
            _log.error("%s; looking for the one before", error)
            problems.append(str(error))
    if problems:
        raise CheckpointError(f"no usable snapshot in {folder}: {'; '.join(problems)}")
    return None


def read(path: str) -> Snapshot:
    """Reads a snapshot.

    Raises:
      CheckpointError: the file is truncated, altered, or something else; names it and the reason.
    """
    try:
        with _open(path) as file, np.load(file, allow_pickle=False) as archive:
            about = json.loads(bytes(archive["about"]).decode())
            if about.get("format") != _FORMAT:
                raise CheckpointError(
                    f"snapshot {path}: expected format {_FORMAT}, received {about.get('format')}"
                )
            shards = {
                name: archive[f"shard_{i}"].view(tf.as_dtype(dtype).as_numpy_dtype)
                for i, (name, dtype) in enumerate(about["shards"])
            }
            return Snapshot(about["number"], shards, archive["progress"])
    except CheckpointError:
        raise
    except Exception as error:  # zipfile and NumPy have many ways to say that bytes are wrong
        raise CheckpointError(f"snapshot {path} is damaged: {error}") from error


def write_manifest(root: str, number: int, files: list[dict[str, object]]) -> str:
    """Records that all servers have completed checkpoint `number`; returns the record's path."""
    path = f"{root.rstrip('/')}/manifest.json"
    with _create(f"{path}.tmp") as file:
        file.write(json.dumps({"number": number, "servers": files}, indent=1).encode())
    tf.io.gfile.rename(f"{path}.tmp", path, overwrite=True)
    _sync_folder(root)
    return path


def next_number(root: str, servers: int) -> int:
    """Returns a number larger than those of all snapshots of these servers."""
    folders = [directory(root, server, servers) for server in range(servers)]
    return 1 + max((n for folder in folders for n in _numbers(folder)), default=0)


def _numbers(folder: str) -> list[int]:
    if not tf.io.gfile.isdir(folder):
        return []
    matches = map(_FILE.fullmatch, tf.io.gfile.listdir(folder))
    return sorted(int(match[1]) for match in matches if match)


def _plain(array: np.ndarray) -> np.ndarray:
    # NumPy's format does not know bfloat16.
    return array.view(np.uint16) if array.dtype == tf.bfloat16.as_numpy_dtype else array


def _text(value: object) -> np.ndarray:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def _is_local(path: str) -> bool:
    return "://" not in path


@contextlib.contextmanager
def _create(path: str) -> Iterator[BinaryIO]:
    """A new file, which is on the disk afterwards, as far as its file system can tell."""
    if _is_local(path):
        with open(path, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        return
    # Archives need positions, which not all file systems of tf.io.gfile know.
    whole = io.BytesIO()
    yield whole
    with tf.io.gfile.GFile(path, "wb") as file:
        file.write(whole.getvalue())


def _open(path: str) -> BinaryIO:
    if _is_local(path):
        return open(path, "rb")
    with tf.io.gfile.GFile(path, "rb") as file:
        return io.BytesIO(file.read())


def _sync_folder(folder: str) -> None:
    """Makes a new name last."""
    if not _is_local(folder):
        return
    descriptor = os.open(Path(folder), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
