"""Snapshot files: whole or refused, and the one before is at hand."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tfdist import atomic_files
from tfdist.errors import CheckpointError
from tfdist.ps.checkpoint import files, snapshot

BFLOAT16 = tf.bfloat16.as_numpy_dtype


def _snapshot(number: int) -> snapshot.Snapshot:
    shards = {
        "dense/kernel": np.arange(1000, dtype=np.float32) + number,
        "dense/kernel/rows_1_of_2": np.arange(7, dtype=np.float64),
        "adam/iterations": np.array([number], np.int64),
        "half": np.array([1.5, -2.0], np.float16),
        "brain": np.array([1.5, -2.0, number], BFLOAT16),
        "empty": np.zeros([0], np.float32),
    }
    return snapshot.Snapshot(number, shards, np.array([3, 2**63, number], np.uint64))


def _assert_same(left: snapshot.Snapshot, right: snapshot.Snapshot) -> None:
    assert left.number == right.number
    assert list(left.shards) == list(right.shards)
    for name, array in left.shards.items():
        assert array.dtype == right.shards[name].dtype
        assert array.tobytes() == right.shards[name].tobytes()
    np.testing.assert_array_equal(left.progress, right.progress)


def test_what_is_written_is_read(tmp_path):
    folder = snapshot.directory(f"{tmp_path}/job", 1, 3)
    assert snapshot.read_latest(folder) is None
    written = snapshot.write(folder, _snapshot(5))
    assert written["file"] == f"{tmp_path}/job/ps-1-of-3/snapshot-00000005.npz"
    assert written["bytes"] == os.path.getsize(written["file"])
    assert os.stat(written["file"]).st_mode & 0o777 == 0o600
    _assert_same(snapshot.read_latest(folder), _snapshot(5))


def test_a_path_that_only_tensorflow_knows():
    folder = "ram://tfdist/ps-0-of-1"
    snapshot.write(folder, _snapshot(1))
    _assert_same(snapshot.read_latest(folder), _snapshot(1))


def test_the_last_two_are_kept(tmp_path):
    for number in (1, 2, 3):
        snapshot.write(str(tmp_path), _snapshot(number))
    assert sorted(os.listdir(tmp_path)) == ["snapshot-00000002.npz", "snapshot-00000003.npz"]
    _assert_same(snapshot.read_latest(str(tmp_path)), _snapshot(3))


def _damage_all_ways(path: Path):
    whole = path.read_bytes()
    for size in (0, 1, len(whole) // 3, len(whole) // 2, len(whole) - 1):
        yield f"truncated to {size}", whole[:size]
    random = np.random.default_rng(3)
    for position in random.integers(0, len(whole), 300):
        flipped = bytearray(whole)
        flipped[position] ^= 0x10
        yield f"bit of byte {position} flipped", bytes(flipped)
    yield "other bytes", random.bytes(len(whole))


def test_damage_is_seen_and_the_one_before_is_used(tmp_path, caplog):
    for number in (1, 2):
        snapshot.write(str(tmp_path), _snapshot(number))
    path = tmp_path / "snapshot-00000002.npz"
    refused = 0
    for how, content in _damage_all_ways(path):
        path.write_bytes(content)
        caplog.clear()
        latest = snapshot.read_latest(str(tmp_path))
        if latest.number == 2:
            # A bit that says nothing about the content, such as a date.
            _assert_same(latest, _snapshot(2))
            continue
        refused += 1
        _assert_same(latest, _snapshot(1))
        assert str(path) in caplog.text, how
        assert "damaged" in caplog.text, how
    assert refused > 250


def test_nothing_usable_is_an_error(tmp_path):
    (tmp_path / "snapshot-00000001.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(CheckpointError, match=r"no usable snapshot.*00000001\.npz is damaged"):
        snapshot.read_latest(str(tmp_path))


def test_another_format_is_refused(tmp_path):
    about = np.frombuffer(json.dumps({"format": 2}).encode(), np.uint8)
    np.savez(tmp_path / "snapshot-00000001.npz", about=about)
    with pytest.raises(CheckpointError, match="expected format 1, received 2"):
        snapshot.read(f"{tmp_path}/snapshot-00000001.npz")


def test_an_unfinished_file_is_not_there(tmp_path):
    path = tmp_path / "snapshot-00000001.npz"
    with contextlib.suppress(KeyError), files.replaced(str(path)) as file:
        file.write(b"half")
        (unfinished,) = tmp_path.iterdir()
        shutil.copy(unfinished, tmp_path / "copy")
        raise KeyError
    (tmp_path / "copy").rename(unfinished)
    assert snapshot.read_latest(str(tmp_path)) is None
    # Of a process that lives no more.
    unfinished.rename(str(unfinished).replace(f"-{os.getpid()}-", f"-{2**22}-"))
    snapshot.write(str(tmp_path), _snapshot(2))
    assert os.listdir(tmp_path) == ["snapshot-00000002.npz"]


def test_two_processes_that_write_the_same_file_do_not_share_one(tmp_path):
    """As a server that was stopped in its snapshot, and its successor."""
    path = tmp_path / "snapshot-00000001.npz"
    with files.replaced(str(path)) as stopped:
        stopped.write(b"of the writer ")
        with files.replaced(str(path)) as successor:
            successor.write(b"of the other")
        assert path.read_bytes() == b"of the other"
        stopped.write(b"that was stopped")
    assert path.read_bytes() == b"of the writer that was stopped"
    assert os.listdir(tmp_path) == [path.name]


def test_numbers_go_on(tmp_path):
    assert snapshot.next_number(str(tmp_path), 2) == 1
    snapshot.write(snapshot.directory(str(tmp_path), 1, 2), _snapshot(41))
    assert snapshot.next_number(str(tmp_path), 2) == 42


def test_manifest(tmp_path):
    parts = [{"file": "a", "bytes": 1}, {"file": "b", "bytes": 2}]
    path = snapshot.write_manifest(str(tmp_path), 7, parts)
    assert path == f"{tmp_path}/manifest.json"
    assert json.loads(Path(path).read_text()) == {"number": 7, "servers": parts}
    assert os.listdir(tmp_path) == ["manifest.json"]


@pytest.mark.parametrize("number", ["1e999", "-1", '"../../x"', "1" * 4000, "1" * 5000, "1.5"])
def test_a_manifest_without_a_number_is_refused(tmp_path, number):
    (tmp_path / "manifest.json").write_text(f'{{"number": {number}, "servers": []}}')
    with pytest.raises(CheckpointError, match=r"manifest\.json is damaged"):
        snapshot.recorded(str(tmp_path))
    (tmp_path / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match=r"manifest\.json is damaged"):
        snapshot.recorded(str(tmp_path))


def test_a_link_that_somebody_has_put_there_is_not_followed(tmp_path, monkeypatch):
    (tmp_path / "precious").write_text("precious")
    folder = tmp_path / "ps-0-of-1"
    folder.mkdir()
    new = folder / ".incomplete-by-chance"
    new.symlink_to(tmp_path / "precious")
    monkeypatch.setattr(atomic_files, "new_name", lambda path: str(new))
    written = Path(snapshot.write(str(folder), _snapshot(1))["file"])
    assert (tmp_path / "precious").read_text() == "precious"
    assert not written.is_symlink() and written.stat().st_mode & 0o777 == 0o600


@pytest.mark.timeout(20)
def test_a_pipe_is_no_snapshot(tmp_path):
    os.mkfifo(tmp_path / "snapshot-00000001.npz")
    with pytest.raises(CheckpointError, match="expected a file, received something else"):
        snapshot.read(f"{tmp_path}/snapshot-00000001.npz")


def test_a_folder_that_others_can_change_is_said(tmp_path, caplog):
    folder = tmp_path / "ps-0-of-1"
    snapshot.prepare(str(folder))
    assert folder.stat().st_mode & 0o777 == 0o700 and not caplog.messages
    folder.chmod(0o777)
    snapshot.prepare(str(folder))
    assert caplog.messages == [f"checkpoint_dir: {folder} can be written by others (mode 777)"]


def test_numbers_of_more_than_eight_digits(tmp_path):
    snapshot.write(str(tmp_path), _snapshot(99_999_999))
    snapshot.write(str(tmp_path), _snapshot(100_000_000))
    assert snapshot.read_latest(str(tmp_path)).number == 100_000_000
