"""Snapshots of a parameter server and the manifest: `tfdist/ps/checkpoint/snapshot.py`.

Input: a byte for the form, then an archive, its description, or a manifest, or how a right one is
altered. All are read, or
refused with a CheckpointError that names the file; arrays are flat, of types that servers have.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf
from altered_json import altered

from tfdist.errors import CheckpointError
from tfdist.ops.ps.dtypes import DTYPES
from tfdist.ps.checkpoint import snapshot

_ABOUT = {
    **{"format": 1, "number": 7, "shards": [["w", "float32"], ["u", "bfloat16"]], "aside": 1},
    **{"rows": 5, "log": 6, "time": 7.5, "tasks": "{}", "positions": {"task": 3}},
}
_MANIFEST = {"number": 7, "servers": [{"file": "f", "bytes": 3}]}


def run(data: bytes) -> None:
    form, content = data[0] if data else 0, data[1:]
    if form >= 128:
        content = altered(json.dumps(_MANIFEST if form % 3 == 2 else _ABOUT).encode(), content)
        form = 2 if form % 3 == 2 else 1
    form %= 3
    with tempfile.TemporaryDirectory() as folder:
        if form == 2:
            _manifest(folder, content)
        else:
            _snapshot(f"{folder}/snapshot-00000001.npz", content, is_whole=form == 0)


def _snapshot(path: str, content: bytes, is_whole: bool) -> None:
    if not is_whole:
        with open(path, "wb") as file:
            np.savez(
                file,
                about=np.frombuffer(content, np.uint8),
                progress=np.zeros(3, np.uint64),
                shard_0=np.arange(4, dtype=np.float32),
                shard_1=np.arange(4, dtype=np.uint16),
            )
    else:
        Path(path).write_bytes(content)
    try:
        found = snapshot.read(path)
    except CheckpointError as error:
        assert path in str(error)
        return
    assert isinstance(found.number, int) and isinstance(found.log, int)
    assert isinstance(found.time, int | float) and np.isfinite(found.time)
    for name, array in [*found.shards.items(), *found.unclaimed.items()]:
        assert isinstance(name, str)
        assert tf.as_dtype(array.dtype) in DTYPES
    assert found.progress.dtype == np.uint64 and found.progress.ndim == 1


def _manifest(folder: str, content: bytes) -> None:
    (Path(folder) / "manifest.json").write_bytes(content)
    try:
        number, servers = snapshot.recorded(folder)
    except CheckpointError as error:
        assert "manifest.json" in str(error)
        return
    assert isinstance(number, int) and isinstance(servers, int)


def seeds() -> list[bytes]:
    shards = {"w": np.arange(4.0), "b": np.arange(3, dtype=np.int64)}
    state = snapshot.Snapshot(7, shards, np.arange(3, dtype=np.uint64), {"u": np.ones(2)}, 5, 6)
    with tempfile.TemporaryDirectory() as folder:
        written = snapshot.write(folder, state)["file"]
        archive = Path(str(written)).read_bytes()
    return [
        b"\0" + archive,
        b"\1" + json.dumps(_ABOUT).encode(),
        b"\2" + json.dumps(_MANIFEST).encode(),
        b"\2" + b"[" * 2000,
        *(bytes([128 + number, number // 2, number]) for number in range(64)),
    ]
