"""Datasets of tasks in one process: records, orders, epochs, and bad input."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.data import checkpoints, feed, files
from tfdist.errors import ClusterConfigError


def epoch_of(dataset):
    """Trains on a dataset once; returns its records."""
    seen = []
    for record in tfdist.data.tracked(dataset):
        seen.append(record.numpy().tolist() if record.dtype != tf.string else record.numpy())
        tfdist.data.commit(dataset)
    feed.current.report()
    return seen


def test_ranges():
    dataset = tfdist.data.from_ranges(10, 4, epochs=2)
    assert [epoch_of(dataset) for _ in range(3)] == [list(range(10)), list(range(10)), []]


def test_arrays_keep_their_structure():
    arrays = {"a": np.arange(7.0), "b": (np.arange(14).reshape(7, 2), np.array([b"x"] * 7))}
    dataset = tfdist.data.from_arrays(arrays, 3)
    assert dataset.element_spec["b"][0] == tf.TensorSpec([2], tf.int64)
    rows = list(tfdist.data.tracked(dataset))
    assert [float(row["a"]) for row in rows] == list(range(7))
    assert rows[3]["b"][0].numpy().tolist() == [6, 7] and rows[3]["b"][1].numpy() == b"x"
    (only,) = tfdist.data.from_arrays((np.arange(3),), 3, name="tuple").element_spec
    assert only == tf.TensorSpec([], tf.int64)


def test_shuffled_tasks_and_records():
    dataset = tfdist.data.from_ranges(100, 10, shuffle=True, seed=5)
    orders = [epoch_of(dataset) for _ in range(2)]
    assert all(sorted(order) == list(range(100)) for order in orders) and orders[0] != orders[1]
    tasks = [
        [record // 10 for record in order[i : i + 10]]
        for order in orders
        for i in range(0, 100, 10)
    ]
    assert all(len(set(task)) == 1 for task in tasks)  # a task's records stay together
    assert any(sorted(order[:10]) != order[:10] for order in orders)
    feed.current = feed.Feeds()
    assert epoch_of(tfdist.data.from_ranges(100, 10, shuffle=True, seed=5)) == orders[0]


@pytest.fixture
def record_files(tmp_path):
    """Two TFRecord files; records of 1 to 60,000 bytes."""
    records = {}
    for name, count in (("a", 5), ("b", 6)):
        path = str(tmp_path / f"{name}.tfrecord")
        records[path] = [f"{name}{i}-".encode() * (10_000 if i == 2 else 1) for i in range(count)]
        with tf.io.TFRecordWriter(path) as writer:
            for record in records[path]:
                writer.write(record)
    return records


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("block", [4 << 20, 16])
def test_records_of_files(tmp_path, record_files, shuffle, block, monkeypatch):
    monkeypatch.setattr(files, "_BLOCK", block)
    pattern = str(tmp_path / "*.tfrecord")
    dataset = tfdist.data.from_files(pattern, task_size=2, shuffle=shuffle, seed=1, epochs=1)
    expected = list(itertools.chain(*record_files.values()))
    seen = epoch_of(dataset)
    assert sorted(seen) == sorted(expected) and (seen == expected) != shuffle


@pytest.mark.parametrize("block", [4 << 20, 3])
@pytest.mark.parametrize(
    ("text", "header", "expected"),
    [
        (b"a\nb\r\n\nc\nd", 0, [b"a", b"b", b"", b"c", b"d"]),
        (b"id,x\n1,2\n3,4\n", 1, [b"1,2", b"3,4"]),
        (b"id,x\n1,2", 1, [b"1,2"]),
        (b"one\n", 0, [b"one"]),
    ],
)
def test_lines_of_files(tmp_path, monkeypatch, block, text, header, expected):
    monkeypatch.setattr(files, "_BLOCK", block)
    (tmp_path / "t.csv").write_bytes(text)
    path = str(tmp_path / "t.csv")
    dataset = tfdist.data.from_files(path, "lines", 2, header=header, epochs=1)
    assert epoch_of(dataset) == expected
    if not header:
        assert list(tf.data.TextLineDataset(path).as_numpy_iterator()) == expected


def test_a_file_without_records(tmp_path):
    (tmp_path / "head.csv").write_text("id,x")
    (tmp_path / "rows.csv").write_text("id,x\n1,2\n")
    (tmp_path / "empty.csv").write_text("")
    dataset = tfdist.data.from_files(str(tmp_path / "*.csv"), "lines", header=1, epochs=1)
    assert epoch_of(dataset) == [b"1,2"]


def test_what_a_worker_had_begun_another_one_ends(record_files):
    """A partly trained task, shuffled: the second owner trains exactly the rest."""
    pattern = sorted(record_files)
    expected = sorted(itertools.chain(*record_files.values()))
    seen = []
    for _ in range(2):
        dataset = tfdist.data.from_files(pattern, task_size=4, shuffle=True, seed=2, epochs=1)
        for record in tfdist.data.tracked(dataset):
            seen.append(record.numpy())
            tfdist.data.commit(dataset)
            if len(seen) == 3:
                break
    assert sorted(seen) == expected


def test_a_state_goes_on_in_another_process(record_files):
    dataset = tfdist.data.from_ranges(10, 4, shuffle=True, seed=1, epochs=2)
    seen = epoch_of(dataset)
    for batch in tfdist.data.tracked(dataset.batch(3)).take(2):
        seen += batch.numpy().tolist()
        tfdist.data.commit(dataset)
    state = checkpoints.state()
    assert json.loads(state)["queues"]["train"]["queue"]["records"] == 16
    feed.current = feed.Feeds()
    dataset = tfdist.data.from_ranges(10, 4, shuffle=True, seed=1, epochs=2)
    checkpoints.restore(state)
    seen += epoch_of(dataset)
    assert sorted(seen) == sorted([*range(10), *range(10)])


def test_a_checkpoint_of_tensorflow(tmp_path):
    dataset = tfdist.data.from_ranges(10, 5, epochs=1)
    for _ in tfdist.data.tracked(dataset).take(6):
        tfdist.data.commit()
    path = tf.train.Checkpoint(tasks=tfdist.data.TaskState()).write(str(tmp_path / "c"))
    feed.current = feed.Feeds()
    dataset = tfdist.data.from_ranges(10, 5, epochs=1)
    tf.train.Checkpoint(tasks=tfdist.data.TaskState()).read(path).assert_consumed()
    assert epoch_of(dataset) == [6, 7, 8, 9]


def test_repeat_reads_epoch_after_epoch():
    dataset = tfdist.data.from_ranges(5, 2, epochs=3).repeat().batch(4)
    seen = []
    for batch in tfdist.data.tracked(dataset):
        seen.append(batch.numpy().tolist())
        tfdist.data.commit(dataset)
    assert seen == [[0, 1, 2, 3], [4, 0, 1, 2], [3, 4, 0, 1], [2, 3, 4]]
    feed.current.report()
    assert feed.current.client().begin("train", 2).epoch is None


def test_what_a_last_batch_leaves_out_is_dealt_again():
    dataset = tfdist.data.from_ranges(10, 5, epochs=2).batch(4, drop_remainder=True)
    assert epoch_of(dataset) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert epoch_of(dataset) == [[8, 9, 0, 1], [2, 3, 4, 5], [6, 7, 8, 9]]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda d: d.shuffle(4), "Shuffle"),
        (lambda d: d.filter(lambda _: True), "Filter"),
        (lambda d: d.batch(2).unbatch(), "dataset"),
        (lambda d: d.batch(2).batch(2), "two batches"),
        (lambda d: d.skip(1), "Skip"),
        (lambda d: d.cache(), "Cache"),
        (lambda d: d.map(lambda i: i, 2, deterministic=False), "deterministic=False"),
        (lambda d: d.interleave(tf.data.Dataset.from_tensors), "Interleave"),
    ],
)
def test_what_changes_the_order_is_refused(change, named):
    dataset = change(tfdist.data.from_ranges(10))
    with pytest.raises(ValueError, match="would be unknown") as caught:
        tfdist.data.tracked(dataset)
    assert named.lower() in str(caught.value).lower()


def test_maps_batches_and_prefetches_keep_the_order():
    dataset = tfdist.data.from_ranges(10, 3).map(lambda i: (i, 2 * i), tf.data.AUTOTUNE)
    dataset = dataset.padded_batch(4).map(lambda a, b: {"a": a, "b": b}).prefetch(2)
    tracked = tfdist.data.tracked(dataset)
    assert tracked.element_spec == dataset.element_spec
    assert [batch["b"].numpy().tolist() for batch in tracked] == [
        [0, 2, 4, 6],
        [8, 10, 12, 14],
        [16, 18],
    ]
    assert tfdist.data.tracked(tracked) is tracked
    other = tf.data.Dataset.range(3)
    assert tfdist.data.tracked(other) is other


@pytest.mark.parametrize("kind", ["ragged", "sparse"])
def test_rows_of_composite_tensors(kind):
    def rows(i):
        ragged = tf.RaggedTensor.from_row_lengths(tf.range(tf.reduce_sum(i)), i)
        return ragged if kind == "ragged" else ragged.to_sparse()

    dataset = tfdist.data.from_ranges(10, 3, epochs=1).batch(4).map(rows)
    for _ in tfdist.data.tracked(dataset):
        tfdist.data.commit()
    feed.current.report()
    assert feed.current.client().begin("train", 0).epoch is None


def test_a_vanished_file(tmp_path, record_files):
    dataset = tfdist.data.from_files(sorted(record_files), task_size=2, epochs=1)
    iterator = iter(tfdist.data.tracked(dataset))
    next(iterator)
    lost = sorted(record_files)[1]
    (tmp_path / lost).unlink()
    with pytest.raises(tf.errors.OpError, match="b.tfrecord has vanished"):
        list(iterator)


def test_a_changed_file(tmp_path, record_files):
    dataset = tfdist.data.from_files(sorted(record_files), task_size=2, epochs=1)
    iterator = iter(tfdist.data.tracked(dataset))
    next(iterator)
    with open(sorted(record_files)[1], "ab") as file:
        file.write(b"more")
    with pytest.raises(tf.errors.OpError, match=r"expected \d+ bytes, received \d+: the file has"):
        list(iterator)


@pytest.mark.parametrize("cut", [1, 20, 6])
def test_a_truncated_record(record_files, cut):
    path = sorted(record_files)[0]
    with open(path, "rb+") as file:
        file.truncate(file.seek(0, 2) - cut)
    dataset = tfdist.data.from_files(path, task_size=2)
    with pytest.raises(tf.errors.OpError, match="its record [34], at byte .*, is not whole"):
        list(dataset)


def test_damaged_content_of_a_record(record_files):
    path = sorted(record_files)[0]
    with open(path, "rb+") as file:
        file.seek(-6, 2)
        file.write(b"?")
    dataset = tfdist.data.from_files(path, task_size=2, epochs=1)
    with pytest.raises(tf.errors.DataLossError, match="corrupted record"):
        list(dataset)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"records": 0}, "records"),
        ({"records": 10, "task_size": 0}, "task_size"),
        ({"records": 10, "lease": 0.2}, "lease"),
        ({"records": 10, "epochs": 0}, "epochs"),
        ({"records": 10, "seed": -1}, "seed"),
        ({"records": 10**9, "task_size": 1}, "make the tasks larger"),
    ],
)
def test_wrong_arguments(arguments, error):
    with pytest.raises(ValueError, match=error):
        tfdist.data.from_ranges(**arguments)


def test_wrong_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="found none"):
        tfdist.data.from_files(str(tmp_path / "*.none"))
    (tmp_path / "a").write_text("x\n")
    with pytest.raises(ValueError, match="twice"):
        tfdist.data.from_files([str(tmp_path / "a")] * 2, "lines")
    with pytest.raises(ValueError, match="reader"):
        tfdist.data.from_files(str(tmp_path / "a"), "music")
    with pytest.raises(ValueError, match="header"):
        tfdist.data.from_files(str(tmp_path / "a"), header=1)


def test_arrays_of_unequal_length():
    with pytest.raises(ValueError, match="one length"):
        tfdist.data.from_arrays((np.zeros(3), np.zeros(4)))


def test_two_data_sets_need_two_names():
    tfdist.data.from_ranges(10)
    tfdist.data.from_ranges(10)
    with pytest.raises(ClusterConfigError, match="another name"):
        tfdist.data.from_ranges(11)


def test_reading_without_a_commit_is_told(caplog):
    dataset = tfdist.data.from_ranges(4, 2, epochs=1)
    tracked = tfdist.data.tracked(dataset)
    assert len(list(tracked)) == 4
    assert len(list(tracked)) == 4  # nothing is lost
    assert "call tfdist.data.commit() after each step" in caplog.text


def test_which_data_set_a_commit_means():
    with pytest.raises(ValueError, match="received"):
        tfdist.data.commit()
    with pytest.raises(ValueError, match="from_ranges"):
        tfdist.data.commit(tf.data.Dataset.range(3))
