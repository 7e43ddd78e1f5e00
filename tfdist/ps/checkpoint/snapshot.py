"""Snapshots of parameter servers: their files, and the manifest.

```
  checkpoint_dir/
    manifest.json                       the latest checkpoint that all servers have completed
    ps-0-of-2/snapshot-00000007.npz     one file per server and checkpoint; the last two are kept
    ps-0-of-2/snapshot-00000007.rows    rows of tables: all, or those that changed since the base
    ps-0-of-2/snapshot-00000006.rows      file, which is kept while it is needed
    ps-0-of-2/rows-00000009.log         changes of rows since then: `core/ps/store/redo_log.h`
    ps-0-of-2/rows-00000009.log.values  values of other variables, where data tasks are trained
    ps-1-of-2/...
```

An .npz is a NumPy archive with a checksum of every array (`numpy.load` reads it); `rows_file`
defines .rows files. Each file gets its name only when it is complete, the archive last.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.errors import CheckpointError
from tfdist.ops.ps.dtypes import DTYPES
from tfdist.ps.checkpoint import files, layout, row_chain
from tfdist.ps.checkpoint.layout import directory

_log = logging.getLogger("tfdist.ps")
_KEPT_SNAPSHOTS = 2
_MAX_NUMBER = 10**12
_FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The state of a server.

    Args:
      number: the checkpoint's number; later ones have larger numbers.
      shards: flat arrays by name.
      progress: opaque numbers that record which pushes the server has applied.
      unclaimed: like `shards`: shards from another number of servers that no worker has created
        here yet.
      rows: the checksum of the file of rows; `None` if there is none.
      log: the number of the first log of rows that this snapshot does not include.
      time: the time of the snapshot, on the clock of its rows; 0: unknown.
      tasks: the state of the job's data tasks; "" if this server does not have it.
      positions: by data task, how many of its records pushes have trained.
    """

    number: int
    shards: Mapping[str, np.ndarray]
    progress: np.ndarray
    unclaimed: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    rows: int | None = None
    log: int = 0
    time: float = 0.0
    tasks: str = ""
    positions: Mapping[str, int] = dataclasses.field(default_factory=dict)


def prepare(folder: str) -> None:
    """Makes the folder, and checks that it is writable.

    Raises:
      CheckpointError: it is not; names the folder and the reason.
    """
    probe = f"{folder}/probe"
    try:
        problem = files.make_folder(folder)
        if problem is not None:
            _log.warning("checkpoint_dir: %s", problem)
        with files.create(probe) as file:
            file.write(b"tfdist")
        tf.io.gfile.remove(probe)
    except (tf.errors.OpError, OSError) as error:
        raise CheckpointError(
            f"checkpoint_dir: expected a place to write {folder}, received {error}"
        ) from error


def write(folder: str, snapshot: Snapshot) -> dict[str, object]:
    """Writes a snapshot and removes old ones.

    Returns:
      {"file": its path, "bytes": its size}.

    Raises:
      tf.errors.OpError, OSError: the file system refused.
    """
    tf.io.gfile.makedirs(folder)
    path = layout.path(folder, snapshot.number, "npz")
    named = [*snapshot.shards.items(), *snapshot.unclaimed.items()]
    arrays: dict[str, Any] = {f"shard_{i}": _plain(array) for i, (_, array) in enumerate(named)}
    described = {
        "format": _FORMAT,
        "number": snapshot.number,
        "shards": [[name, array.dtype.name] for name, array in named],
        "aside": len(snapshot.unclaimed),
        "rows": snapshot.rows,
        "log": snapshot.log,
        "time": snapshot.time,
        "tasks": snapshot.tasks,
        "positions": dict(snapshot.positions),
    }
    with files.replaced(path) as file:
        np.savez(file, about=_text(described), progress=snapshot.progress, **arrays)
    _remove_old(folder)
    return {"file": path, "bytes": tf.io.gfile.stat(path).length}


def read_latest(folder: str, apply: Callable[[Snapshot], None] | None = None) -> Snapshot | None:
    """Reads the latest valid snapshot; `None` if there is no file.

    The log names the errors of invalid snapshots.

    Args:
      folder: the server's directory.
      apply: is called with the snapshot; a CheckpointError makes it an invalid one.

    Raises:
      CheckpointError: there are files, and none is valid.
    """
    problems = []
    for number in reversed(layout.numbers(folder)):
        try:
            snapshot = read(layout.path(folder, number, "npz"))
            if apply is not None:
                apply(snapshot)
            return snapshot
        except CheckpointError as error:
            _log.error("%s; looking for the one before", error)
            problems.append(str(error))
    if problems:
        raise CheckpointError(f"no usable snapshot in {folder}: {'; '.join(problems)}")
    return None


def read(path: str) -> Snapshot:
    """Reads a snapshot.

    Raises:
      CheckpointError: the file is truncated, altered, or no snapshot; names it and the reason.
    """
    try:
        with files.open_whole(path) as file, np.load(file, allow_pickle=False) as archive:
            about = json.loads(bytes(archive["about"]).decode())
            for name in ("number", "log", "rows", "aside"):
                value = about.get(name, 0)
                is_number = isinstance(value, int) and not isinstance(value, bool)
                if not (is_number or (name == "rows" and value is None)):
                    raise CheckpointError(f"snapshot {path} is damaged: {name} is no number")
            if not math.isfinite(about.get("time", 0.0)):
                raise CheckpointError(f"snapshot {path} is damaged: its time is none")
            if about.get("format") != _FORMAT:
                raise CheckpointError(
                    f"snapshot {path}: expected format {_FORMAT}, received {about.get('format')}"
                )
            shards = [
                (name, archive[f"shard_{i}"].view(tf.as_dtype(dtype).as_numpy_dtype))
                for i, (name, dtype) in enumerate(about["shards"])
            ]
            for name, array in shards:
                if not isinstance(name, str) or DTYPES.get(tf.as_dtype(array.dtype)) is None:
                    raise CheckpointError(
                        f"snapshot {path} is damaged: expected a variable's name and numbers, "
                        f"received {name!r:.80} and {array.dtype}"
                    )
            split = len(shards) - about.get("aside", 0)
            return Snapshot(
                about["number"],
                dict(shards[:split]),
                archive["progress"].astype(np.uint64),
                dict(shards[split:]),
                about.get("rows"),
                about.get("log", 0),
                float(about.get("time", 0.0)),
                str(about.get("tasks", "")),
                {str(name): int(trained) for name, trained in about.get("positions", {}).items()},
            )
    except CheckpointError:
        raise
    except Exception as error:  # zipfile and NumPy raise many types for wrong bytes
        raise CheckpointError(f"snapshot {path} is damaged: {error}") from error


def write_manifest(root: str, number: int, parts: list[dict[str, object]]) -> str:
    """Records that all servers have completed checkpoint `number`; returns the manifest's path."""
    path = layout.manifest(root)
    with files.replaced(path) as file:
        file.write(json.dumps({"number": number, "servers": parts}, indent=1).encode())
    return path


def recorded(root: str) -> tuple[int, int]:
    """Returns the manifest's checkpoint number and number of servers; zeros if there is none.

    Raises:
      CheckpointError: the manifest is invalid.
    """
    path = layout.manifest(root)
    if not tf.io.gfile.exists(path):
        return 0, 0
    try:
        with files.open_whole(path) as file:
            manifest = json.loads(file.read().decode())
        number = manifest["number"]
        if not isinstance(number, int) or not 0 <= number < _MAX_NUMBER:
            raise ValueError(f"expected a number from 0 to {_MAX_NUMBER}, received {number!r:.50}")
        return number, len(manifest["servers"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error


def next_number(root: str, servers: int) -> int:
    """Returns a number above the numbers of all snapshots of these servers and of the manifest."""
    folders = [directory(root, server, servers) for server in range(servers)]
    written = max((n for folder in folders for n in layout.numbers(folder)), default=0)
    return 1 + max(written, _recorded_number(root))


def _recorded_number(root: str) -> int:
    try:
        return recorded(root)[0]
    except CheckpointError as error:
        _log.error("%s", error)
        return 0


def _remove_old(folder: str) -> None:
    """Removes files that neither the last snapshots nor the manifest's one need."""
    written = layout.numbers(folder)
    needed = set(written[-_KEPT_SNAPSHOTS:]) | (
        {_recorded_number(folder.rpartition("/")[0])} & set(written)
    )
    needed_rows: set[int] = set()
    first_logs = []
    for number in needed:
        try:
            about = description(layout.path(folder, number, "npz"))
            if about.get("rows") is not None:
                needed_rows.update(n for n, _ in row_chain.chain(folder, number, about["rows"]))
        except CheckpointError as error:
            _log.error("%s; nothing is removed", error)
            return
        first_logs.append(about.get("log", 0))
    for number in set(written) - needed:
        tf.io.gfile.remove(layout.path(folder, number, "npz"))
    for number in set(layout.row_files(folder)) - needed_rows:
        if number < max(needed):
            tf.io.gfile.remove(layout.path(folder, number, "rows"))
    for number, path in layout.logs(folder, 0):
        if number < min(first_logs):
            tf.io.gfile.remove(path)
            if tf.io.gfile.exists(layout.values_path(path)):
                tf.io.gfile.remove(layout.values_path(path))


def description(path: str) -> dict[str, Any]:
    """Returns the description in a snapshot's archive, without its arrays.

    Raises:
      CheckpointError: the file is damaged, or no snapshot.
    """
    try:
        with files.open_whole(path) as file, np.load(file, allow_pickle=False) as archive:
            return json.loads(bytes(archive["about"]).decode())
    except Exception as error:  # as in `read`
        raise CheckpointError(f"snapshot {path} is damaged: {error}") from error


def _plain(array: np.ndarray) -> np.ndarray:
    # NumPy's file format has no bfloat16.
    return array.view(np.uint16) if array.dtype == tf.bfloat16.as_numpy_dtype else array


def _text(value: object) -> np.ndarray:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)
