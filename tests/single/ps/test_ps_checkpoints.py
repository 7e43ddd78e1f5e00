"""Checkpoints of embedding tables: all rows, changed rows, and the redo log."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import resource
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from support.table_job import ADAGRAD, Worker, restored, rows_of, scanned, start_server, train
from tfdist.errors import CheckpointError
from tfdist.ops.ps.optimizer_config import OptimizerConfig, OptimizerKind
from tfdist.ops.ps.saved_rows import SavedRows
from tfdist.ops.ps.snapshot import ServerSnapshot
from tfdist.ops.ps.table_config import TableConfig
from tfdist.ps.checkpoint import checkpoint as checkpoints
from tfdist.ps.checkpoint import layout, row_chain, rows_file, snapshot
from tfdist.ps.checkpoint.checkpoint import Checkpoints


@pytest.fixture
def job(tmp_path):
    """A server with its checkpoints, and a worker with two tables."""
    store = start_server()
    checkpoints = Checkpoints(store, str(tmp_path), 0, 1)
    assert checkpoints.restore() is None
    worker = Worker([store])
    return store, checkpoints, worker, [worker.table("a", 3, **ADAGRAD), worker.table("b", 1)]


def test_all_rows_and_then_those_that_changed(job, tmp_path):
    store, checkpoints, worker, (a, b) = job
    train(worker, a, 1, count=4000)
    train(worker, b, 2)
    checkpoints.save(1)
    sizes = [os.path.getsize(layout.path(f"{tmp_path}/ps-0-of-1", 1, "rows"))]
    for number in (2, 3):
        train(worker, a, number, count=50, steps=1)
        checkpoints.save(number)
        sizes.append(os.path.getsize(layout.path(f"{tmp_path}/ps-0-of-1", number, "rows")))
    assert max(sizes[1:]) < sizes[0] / 4
    copy, origin = restored(tmp_path)
    assert origin == f"snapshot 3 in {tmp_path}/ps-0-of-1"
    assert rows_of(copy) == rows_of(store)
    assert len(rows_of(copy)["a"]) > 1000
    # The tables exist before a worker has created them.
    assert list(copy.table_stats()) == ["a", "b"]


def test_old_files_are_kept_as_long_as_they_are_needed(job, tmp_path):
    _, checkpoints, worker, (a, _) = job
    train(worker, a, 1, count=4000)
    folder = f"{tmp_path}/ps-0-of-1"
    for number in (1, 2, 3, 4):
        train(worker, a, number, count=10, steps=1)
        checkpoints.save(number)
    assert layout.numbers(folder) == [3, 4]
    assert layout.row_files(folder) == [1, 2, 3, 4]
    checkpoints.save(5, full=True)
    assert layout.row_files(folder) == [1, 2, 3, 4, 5]
    checkpoints.save(6)
    assert layout.numbers(folder) == [5, 6]
    assert layout.row_files(folder) == [5, 6]


def test_all_rows_again_once_the_changes_are_as_many(job, tmp_path):
    _, checkpoints, worker, (a, _) = job
    ids = np.arange(100)
    full = []
    for number in range(1, 6):
        worker.push(a, ids if number != 2 else ids[:40], np.ones([100 if number != 2 else 40, 3]))
        checkpoints.save(number)
        path = layout.path(f"{tmp_path}/ps-0-of-1", number, "rows")
        with open(path, "rb") as file:
            full.append(rows_file.Reader(file, path).about.base is None)
    assert full == [True, False, False, True, False]


def test_rows_that_are_removed_stay_so(tmp_path):
    store = start_server()
    checkpoints = Checkpoints(store, str(tmp_path), 0, 1)
    checkpoints.restore()
    worker = Worker([store])
    table = worker.table("few", 1, max_rows=160)
    worker.lookup(table, np.arange(2000))
    checkpoints.save(1)
    worker.lookup(table, np.arange(2000, 2050))
    checkpoints.save(2)
    assert store.table_stats()["few"].evicted_for_room > 1000
    copy, _ = restored(tmp_path)
    assert rows_of(copy) == rows_of(store)


def test_what_came_after_the_snapshot_is_in_the_log(job, tmp_path):
    store, checkpoints, worker, (a, b) = job
    train(worker, a, 1)
    checkpoints.save(1)
    train(worker, a, 2)
    train(worker, b, 3)
    late = worker.table("late", 2)
    worker.push(late, [5, 6], [[1, 2], [3, 4]])
    copy, origin = restored(tmp_path)
    assert origin.endswith("and 7 pushes of rows since")
    content = {t: {i: r[8:] for i, r in rows.items()} for t, rows in rows_of(copy).items()}
    expected = {t: {i: r[8:] for i, r in rows.items()} for t, rows in rows_of(store).items()}
    # Rows without a gradient have their initial values at each lookup.
    assert content == expected


def time_of(store) -> float:
    with store.checkpoint(False, None) as image:
        return image.time


def test_the_time_of_rows_goes_on_where_it_was(job, tmp_path):
    store, checkpoints, worker, (a, _) = job
    worker.lookup(a, [1, 2])
    checkpoints.save(1)
    path = layout.path(f"{tmp_path}/ps-0-of-1", 1, "npz")
    saved = snapshot.read(path)
    assert abs(saved.time - time.time()) < 60
    # The machine was without the server for a day: its rows could not be used.
    a_day_ago = dataclasses.replace(saved, time=saved.time - 86400)
    snapshot.write(f"{tmp_path}/ps-0-of-1", a_day_ago)
    copy, _ = restored(tmp_path)
    assert 0 <= time_of(copy) - a_day_ago.time < 60
    # A snapshot without a time continues from the last use of a row.
    snapshot.write(f"{tmp_path}/ps-0-of-1", dataclasses.replace(saved, time=0.0))
    copy, _ = restored(tmp_path)
    assert abs(time_of(copy) - saved.time) < 60


def test_a_server_that_never_saved_has_its_log(job, tmp_path):
    store, _, worker, (a, _) = job
    worker.push(a, [1, 2], np.ones([2, 3]))
    copy, origin = restored(tmp_path)
    assert origin == f"1 pushes of rows in {tmp_path}/ps-0-of-1"
    assert rows_of(copy)["a"].keys() == {1, 2}
    # It continues its log in another file, and the next restart applies both.
    again = Worker([copy], rank=0)
    table = again.table("a", 3, **ADAGRAD)
    again.push(table, [2, 3], np.ones([2, 3]))
    third, _ = restored(tmp_path)
    assert {i: r[8:] for i, r in rows_of(third)["a"].items()} == {
        i: r[8:] for i, r in rows_of(copy)["a"].items()
    }


def test_a_log_that_was_cut_off_counts_up_to_there(job, tmp_path, caplog):
    _, _, worker, (_, b) = job
    for _ in range(4):
        worker.push(b, [1], [[1.0]])
    path = Path(layout.log_path(f"{tmp_path}/ps-0-of-1", 0))
    whole = path.read_bytes()
    values = set()
    for size in range(0, len(whole) + 1, 7):
        path.write_bytes(whole[:size])
        copy, _ = restored(tmp_path)
        values.add(copy.table_stats()["b"].updates if copy.table_stats() else 0)
        copy.close()
    assert values == {0, 1, 2, 3}
    assert "are not whole and left out" in caplog.text
    path.write_bytes(b"something else entirely, of some length")
    with pytest.raises(CheckpointError, match="not a log of rows"):
        restored(tmp_path)


def test_a_damaged_record_is_named_and_the_rest_restored(job, tmp_path):
    _, _, worker, (_, b) = job
    path = Path(layout.log_path(f"{tmp_path}/ps-0-of-1", 0))
    ends = []
    for row in range(4):
        worker.push(b, [row], [[1.0]])
        ends.append(len(path.read_bytes()))
    content = bytearray(path.read_bytes())
    content[ends[1] - 1] ^= 1
    path.write_bytes(content)
    copy, origin = restored(tmp_path)
    assert origin == f"3 pushes of rows in {tmp_path}/ps-0-of-1"
    assert rows_of(copy)["b"].keys() == {0, 2, 3}
    event = copy.wait_for_event(20)
    assert event.kind == "log"
    assert f"{path}: the record at byte {ends[0]} (damaged) is left out" in event.text
    assert "its checksum: expected " in event.text


def test_rows_of_another_width_than_their_table_are_refused(job, tmp_path):
    _, checkpoints, worker, (a, _) = job
    train(worker, a, 1)
    checkpoints.save(1)
    train(worker, a, 2)
    checkpoints.save(2)
    folder = f"{tmp_path}/ps-0-of-1"
    # The file of changes says that a row is one number: its table, of the first file, has more.
    saved = snapshot.read(layout.path(folder, 2, "npz"))
    path = Path(layout.path(folder, 2, "rows"))
    with path.open("rb") as file:
        about = rows_file.Reader(file, str(path)).about
    rows = SavedRows(
        np.arange(5),
        *(np.zeros(5, np.uint32) for _ in range(2)),
        np.ones([5, 1], np.float32),
        np.zeros(0, np.int64),
    )

    class Narrow:
        def __init__(self, table):
            self.name, self.description = table.name, table.description
            self.learning_rate, self.step = table.learning_rate, table.step
            self.content_floats = 1

        def chunks(self):
            return [rows]

    with path.open("wb") as file:
        narrow = dataclasses.replace(about, tables=[Narrow(table) for table in about.tables])
        written = rows_file.write(file, narrow)
    snapshot.write(folder, dataclasses.replace(saved, rows=written.checksum))
    copy, origin = restored(tmp_path)
    assert origin.startswith(f"snapshot 1 in {folder}")
    assert rows_of(copy)["a"].keys()


def test_a_file_of_rows_with_any_numbers_is_read_or_refused(job, tmp_path):
    _, checkpoints, worker, (a, _) = job
    train(worker, a, 1, count=20)
    checkpoints.save(1)
    path = Path(layout.path(f"{tmp_path}/ps-0-of-1", 1, "rows"))
    content = path.read_bytes()
    head, magic = rows_file._HEADER, len(rows_file._MAGIC)
    # The pieces, without their checksums.
    pieces, at = [], magic
    while at < len(content):
        fields = head.unpack_from(content, at)
        kind, _, count, removed, floats, _ = fields
        size = rows_file._body_bytes(kind, count, removed, floats)
        pieces.append((list(fields[:5]), content[at + head.size : at + head.size + size]))
        at += head.size + size
    random = np.random.default_rng(3)
    numbers = [0, 1, 7, 2**16, 2**31, 2**32 - 1, 2**61, 2**62 + 4, 2**64 - 1]
    texts = ["-1", "1e308", "1e999", "null", '"x"', "[]", "99999999999999999999", "NaN"]
    refused = 0
    for _ in range(300):
        altered = bytearray(content[:magic])
        for fields, body in pieces:
            fields, body = list(fields), bytes(body)
            if random.random() < 0.4:
                which = int(random.integers(5))
                number = int(random.choice(np.array(numbers, object)))
                fields[which] = number if which in (2, 3) else number % 2**32
            elif fields[0] == rows_file._ABOUT:
                parts = body.decode().split(": ")
                which = int(random.integers(1, len(parts)))
                end = parts[which][parts[which].rfind(",") :] if "," in parts[which] else ""
                parts[which] = str(random.choice(texts)) + end
                body = ": ".join(parts).encode()
                fields[4] = len(body)
            header = head.pack(*fields, 0)[:-4]
            checksum = zlib.crc32(body, zlib.crc32(header))
            altered += header + checksum.to_bytes(4, "little") + body
        path.write_bytes(altered)
        try:
            with path.open("rb") as file:
                reader = rows_file.Reader(file, str(path))
                for _, rows in reader.rows():
                    assert rows.content.shape[0] == len(rows.ids) == len(rows.used)
        except CheckpointError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused > 100


def test_a_push_that_is_sent_again_is_applied_once(tmp_path):
    store = start_server()
    Checkpoints(store, str(tmp_path), 0, 1).restore()
    worker = Worker([store])
    table = worker.table("t", 1)
    for _ in range(3):
        worker.push(table, [1], [[1.0]])
    store.close()
    copy, _ = restored(tmp_path)
    copy.start(bytes(32))
    # The same process reconnects, and repeats its last push.
    again = Worker([copy], start=False)
    table = again.table("t", 1)
    for _ in range(4):
        again.push(table, [1], [[1.0]])
    assert again.lookup(table, [1]).tolist() == [[-4.0]]


def test_admitted_rows_are_made_again_from_the_log(tmp_path):
    store = start_server()
    Checkpoints(store, str(tmp_path), 0, 1).restore()
    worker = Worker([store])
    table = worker.table("t", 1, min_count=2)
    for ids in ([1, 2], [1]):
        worker.lookup(table, ids)
    worker.push(table, [1, 2], [[1.0], [1.0]])
    assert store.table_stats()["t"].lost_updates == 1
    copy, _ = restored(tmp_path)
    assert rows_of(copy)["t"].keys() == {1}


def test_another_configuration_is_refused(job, tmp_path):
    _, checkpoints, worker, (a, _) = job
    worker.push(a, [1], np.ones([1, 3]))
    checkpoints.save(1)
    copy, _ = restored(tmp_path)
    with pytest.raises(tf.errors.InvalidArgumentError, match="'a' was created with another conf"):
        Worker([copy]).table("a", 4)


def test_damage_is_seen_and_the_one_before_is_used(job, tmp_path, caplog):
    store, checkpoints, worker, (a, _) = job
    train(worker, a, 1)
    checkpoints.save(1)
    first = {i: r[8:] for i, r in rows_of(store)["a"].items()}
    checkpoints.save(2, full=True)
    path = Path(layout.path(f"{tmp_path}/ps-0-of-1", 2, "rows"))
    whole = path.read_bytes()
    random = np.random.default_rng(5)
    damaged = [whole[:size] for size in (0, 1, len(whole) // 2, len(whole) - 1)]
    for position in random.integers(0, len(whole), 20):
        flipped = bytearray(whole)
        flipped[position] ^= 0x10
        damaged.append(bytes(flipped))
    damaged.append(random.bytes(len(whole)))
    damaged.append(Path(layout.path(f"{tmp_path}/ps-0-of-1", 1, "rows")).read_bytes())
    for content in damaged:
        path.write_bytes(content)
        caplog.clear()
        copy, origin = restored(tmp_path)
        assert origin.startswith("snapshot 1 in")
        assert str(path) in caplog.text
        assert {i: r[8:] for i, r in rows_of(copy)["a"].items()} == first
        copy.close()
    path.unlink()
    assert restored(tmp_path)[1].startswith("snapshot 1 in")
    assert f"needs {path}, which is missing" in caplog.text
    Path(layout.path(f"{tmp_path}/ps-0-of-1", 1, "rows")).unlink()
    with pytest.raises(CheckpointError, match="no usable snapshot"):
        restored(tmp_path)


def test_a_missing_link_is_an_error(job, tmp_path):
    _, checkpoints, worker, (a, _) = job
    train(worker, a, 1, count=2000)
    for number in (1, 2, 3):
        worker.push(a, [1], np.ones([1, 3]))
        checkpoints.save(number)
    Path(layout.path(f"{tmp_path}/ps-0-of-1", 1, "rows")).unlink()
    with pytest.raises(CheckpointError, match=r"needs .*snapshot-00000001\.rows, which is missing"):
        restored(tmp_path)


def test_a_path_that_only_tensorflow_knows(caplog):
    root = "ram://tables"
    store = start_server()
    checkpoints = Checkpoints(store, root, 0, 1)
    checkpoints.restore()
    assert "is no local path" in caplog.text
    worker = Worker([store])
    table = worker.table("t", 4, **ADAGRAD)
    train(worker, table, 1)
    checkpoints.save(1)
    train(worker, table, 2, count=20, steps=1)
    checkpoints.save(2)
    copy, _ = restored(root)
    assert rows_of(copy) == rows_of(store)


def test_training_goes_on_while_rows_are_fetched(job, tmp_path):
    store, _, worker, (a, _) = job
    train(worker, a, 1, count=5000)
    before = rows_of(store)["a"]
    with store.checkpoint(False, None) as image:
        bits = image.tables[0].chunks(max_rows=10)
        fetched = dict.fromkeys(next(bits).ids.tolist())
        worker.push(a, list(before), np.ones([len(before), 3]))
        worker.lookup(a, np.arange(10**6, 10**6 + 100))
        content = {}
        for bit in bits:
            for row, values in zip(bit.ids.tolist(), bit.content, strict=True):
                content[row] = values.tobytes()
    assert {**content, **fetched}.keys() == before.keys()
    assert all(before[row][8:] == bits for row, bits in content.items())


def test_a_manifest_that_is_something_else(tmp_path):
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"manifest\.json is damaged"):
        snapshot.recorded(str(tmp_path))
    assert snapshot.next_number(str(tmp_path), 1) == 1


def test_a_file_of_rows_that_follows_itself(tmp_path):
    row_chain.write(str(tmp_path), 3, (3, 1), [])
    with pytest.raises(CheckpointError, match="it follows number 3"):
        row_chain.chain(str(tmp_path), 3, 0)


def test_a_long_log_is_cut_by_a_snapshot(job, tmp_path, monkeypatch):
    store, saved, worker, (a, _) = job
    monkeypatch.setattr(checkpoints, "_LONG_LOG", 1 << 20)
    assert not saved.log_is_long()
    ids = np.arange(10_000)
    for _ in range(30):
        worker.push(a, ids, np.ones([10_000, 3]))
    assert saved.log_is_long()
    saved.save_now()
    assert not saved.log_is_long() and store.stats().log_bytes == 0
    # The chief, which does not know of it, requests a snapshot of the same number.
    assert saved.save(1)["file"] == layout.path(f"{tmp_path}/ps-0-of-1", 1, "npz")
    copy, origin = restored(tmp_path)
    assert origin == f"snapshot 1 in {tmp_path}/ps-0-of-1"
    assert rows_of(copy) == rows_of(store)


@contextlib.contextmanager
def full_disk():
    """No file of this process may grow."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("is_saved", [True, False])
def test_a_server_starts_on_a_full_disk(job, tmp_path, is_saved):
    store, saved, worker, (a, _) = job
    worker.push(a, [1, 2], np.ones([2, 3]))
    if is_saved:
        saved.save(1)
    with full_disk():
        copy, origin = restored(tmp_path)
    expected = "snapshot 1 in " if is_saved else "1 pushes of rows in "
    assert origin == f"{expected}{tmp_path}/ps-0-of-1"
    assert rows_of(copy)["a"] == rows_of(store)["a"]
    with full_disk(), pytest.raises(CheckpointError, match="expected a place to write"):
        Checkpoints(start_server(), str(tmp_path / "new"), 0, 1)


def test_a_snapshot_that_fails_leaves_nothing_behind(job, tmp_path):
    _, saved, worker, (a, _) = job
    worker.push(a, [1, 2], np.ones([2, 3]))
    before = sorted(tmp_path.rglob("*"))
    with full_disk(), pytest.raises((OSError, tf.errors.OpError)):
        saved.save(1)
    assert sorted(tmp_path.rglob("*")) == before
    saved.save(1)
    copy, origin = restored(tmp_path)
    assert origin == f"snapshot 1 in {tmp_path}/ps-0-of-1" and rows_of(copy)["a"].keys() == {1, 2}


def test_names_that_are_no_text_are_saved_and_restored(tmp_path):
    store = start_server()
    name = b"\x80 name".decode(errors="surrogateescape")
    store.restore(ServerSnapshot({name: np.arange(3.0)}, np.array([], np.uint64)))
    store.end_restore()
    Checkpoints(store, str(tmp_path), 0, 1).save(1)
    copy, _ = restored(tmp_path)
    with copy.checkpoint(False, None) as image:
        assert list(image.shards) == [name]


ADAM = {
    "optimizer": OptimizerConfig(kind=OptimizerKind.ADAM, beta_1=0.9, beta_2=0.999, epsilon=1e-7)
}


def test_another_optimizer_than_the_checkpoints(job, tmp_path):
    store, checkpoints, worker, (a, _) = job
    train(worker, a, 1)
    checkpoints.save(1)
    train(worker, a, 2)  # in the log

    def again():
        store = start_server()
        checkpoints = Checkpoints(store, str(tmp_path), 0, 1)
        checkpoints.restore()
        return store, checkpoints

    store, checkpoints = again()
    before = rows_of(store)["a"]
    checkpoints.save(2)
    worker = Worker([store])
    config = TableConfig(width=3, **ADAM)
    message = (
        "table 'a' was created with another configuration, whose rows have the slots accumulator "
        r"\(3\); expected momentum \(3\), velocity \(3\), .* reset_slots=True"
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        worker.client.tables.create("a", config)
    other = Worker([store], start=False)
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected a width of 3, received 4"):
        other.client.tables.create("a", TableConfig(width=4), resets_slots=True)
    worker = Worker([store], start=False)
    number = worker.client.tables.create("a", config, resets_slots=True)
    after = scanned(worker, number)
    assert after.keys() == before.keys()
    for id_, row in after.items():  # times of use, counts and values; and Adam's slots
        assert row == before[id_][: 8 + 12] + bytes(24)
    # A worker with the former arguments would train another table.
    former = Worker([store], start=False)
    with pytest.raises(tf.errors.InvalidArgumentError, match="all workers have to give"):
        former.client.tables.create("a", TableConfig(width=3, **ADAGRAD))

    worker = Worker([store], start=False, process=2000)
    table = worker.table("a", 3, **ADAM)
    worker.push(table, list(after)[:5], np.ones([5, 3]))
    changed = scanned(worker, table.table)
    assert changed != after
    killed, _ = again()  # from the former snapshot, and a log of both tables
    assert rows_of(killed)["a"] == changed
    checkpoints.save(3)  # all rows have changed since the one with the former slots
    saved, _ = again()
    assert rows_of(saved)["a"] == changed
    Worker([saved]).table("a", 3, **ADAM)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("number", None), ("number", True), ("log", "1"), ("aside", 0.5), ("rows", [])),
        *(("time", float("inf")), ("time", None), ("shards", [[7, "float32"]])),
        *(("shards", [[None, "float32"]]), ("shards", [["w", "complex64"]])),
    ],
)
def test_a_snapshot_that_says_what_no_server_writes(tmp_path, name, value):
    about = {"format": 1, "number": 1, "shards": [["w", "float32"]], name: value}
    path = f"{tmp_path}/snapshot-00000001.npz"
    text = np.frombuffer(json.dumps(about).encode(), np.uint8)
    np.savez(path, about=text, progress=np.zeros(0, np.uint64), shard_0=np.zeros(2, np.float32))
    with pytest.raises(CheckpointError, match=f"{path} is damaged"):
        snapshot.read(path)
