"""Rows that are written and removed are in snapshots and in the log."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from support.served_tables import Training
from support.table_job import ADAGRAD, Worker, restored, rows_of, scanned, start_server, train
from tfdist.ops.ps.tables import EditKind
from tfdist.ps.checkpoint.checkpoint import Checkpoints

NO_ROWS = tf.zeros([0])


def upsert(worker, table, ids, values):
    worker.client.tables.edit(
        table, EditKind.UPSERT, tf.constant(ids, tf.int64), tf.constant(values, tf.float32)
    )


def remove(worker, table, ids):
    worker.client.tables.edit(table, EditKind.REMOVE, tf.constant(ids, tf.int64), NO_ROWS)


def clear(worker, table):
    worker.client.tables.edit(table, EditKind.CLEAR, tf.zeros([0], tf.int64), NO_ROWS)


@pytest.fixture
def job(tmp_path):
    store = start_server()
    checkpoints = Checkpoints(store, str(tmp_path), 0, 1)
    checkpoints.restore()
    worker = Worker([store])
    return store, checkpoints, worker, worker.table("t", 2, **ADAGRAD)


def same_as_on_disk(worker, table, tmp_path):
    copy, _ = restored(tmp_path)
    # Values and slots by id; lookups, which count uses, are not in the log.
    now = {id_: row[8:] for id_, row in rows_of(copy)["t"].items()}
    assert now == {id_: row[8:] for id_, row in scanned(worker, table.table).items()}
    return now


def test_a_server_that_is_started_again_knows_of_every_edit(job, tmp_path):
    store, checkpoints, worker, table = job
    upsert(worker, table, [1, 2, 3, 10**15], np.ones([4, 2]))
    train(worker, table, 1, count=50, steps=1)
    remove(worker, table, [2, 10**15])
    assert not {2, 10**15} & same_as_on_disk(worker, table, tmp_path).keys()  # from the log alone
    assert checkpoints.unsaved()
    checkpoints.save(1)
    assert not checkpoints.unsaved()
    remove(worker, table, [1])
    assert checkpoints.unsaved()
    upsert(worker, table, [3, 4], np.full([2, 2], 7))
    rows = same_as_on_disk(worker, table, tmp_path)  # from a snapshot and a log
    assert 1 not in rows and {3, 4} <= rows.keys()
    checkpoints.save(2)
    assert same_as_on_disk(worker, table, tmp_path) == rows  # the changes
    clear(worker, table)
    assert not same_as_on_disk(worker, table, tmp_path)
    checkpoints.save(3)
    upsert(worker, table, [5], np.zeros([1, 2]))
    assert same_as_on_disk(worker, table, tmp_path).keys() == {5}
    assert store.stats().edits == 6


def test_rows_that_exist_keep_their_slots(job):
    _, _, worker, table = job
    worker.push(table, [1], [[2.0, 3.0]])
    upsert(worker, table, [1, 2], [[8, 9], [8, 9]])
    worker.push(table, [1, 2], [[1.0, 1.0], [1.0, 1.0]], rate=0.5)
    moved = np.array([[8, 9], [8, 9]]) - worker.lookup(table, [1, 2], training=False)
    accumulated = np.array([[0.1 + 4 + 1, 0.1 + 9 + 1], [1.1, 1.1]])
    np.testing.assert_allclose(moved, 0.5 / np.sqrt(accumulated), rtol=1e-5)


def test_what_does_not_fit_is_refused(job):
    store, _, worker, table = job
    message = "embedding table 't': expected rows of 2 numbers for ids of shape"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        upsert(worker, table, [1, 2], np.ones([2, 3]))
    table.table = 9
    with pytest.raises(tf.errors.InvalidArgumentError, match="there is no table 9"):
        upsert(worker, table, [1], np.ones([1, 2]))
    assert store.stats().edits == 0


def test_max_rows_of_each_server(job):
    _, _, worker, _ = job
    for limit in (10, 100):
        table = worker.table(f"limit {limit}", 1, max_rows=limit)
        for id_ in range(limit):
            worker.lookup(table, [id_ * 31])
        assert worker.client.tables.size(table) == limit
        found, _ = worker.client.tables.find(table, tf.range(0, limit * 31, 31, tf.int64), False)
        assert found.numpy().all()
        worker.lookup(table, np.arange(-1000, 0))
        assert limit <= worker.client.tables.size(table) < limit + 16


def test_a_variable_that_was_set_is_not_saved_yet(tmp_path):
    training = Training(tmp_path, servers=1)
    training.set_variable([1.0, 2.0])
    training.save()
    (checkpoints,) = training.checkpoints
    assert not checkpoints.unsaved()
    training.set_variable([3.0, 4.0])
    assert checkpoints.unsaved()
    training.save()
    assert not checkpoints.unsaved()
