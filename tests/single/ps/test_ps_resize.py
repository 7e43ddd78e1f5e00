"""Restoring a checkpoint with another number of servers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from support.table_job import ADAGRAD, Worker, restored, rows_of, start_server, train
from tfdist.ps.checkpoint import layout, snapshot
from tfdist.ps.checkpoint.checkpoint import Checkpoints


@pytest.mark.parametrize("servers", [1, 2, 5])
def test_another_number_of_servers(tmp_path, servers):
    stores = [start_server(i) for i in range(3)]
    saved = [Checkpoints(store, str(tmp_path), i, 3) for i, store in enumerate(stores)]
    for checkpoints in saved:
        checkpoints.restore()
    worker = Worker(stores)
    tables = [worker.table("a", 3, **ADAGRAD), worker.table("b", 1)]
    for i, table in enumerate(tables):
        train(worker, table, i)
    for checkpoints in saved:
        checkpoints.save(1)
    train(worker, tables[0], 7, count=20, steps=1)
    parts = [checkpoints.save(2) for checkpoints in saved]
    snapshot.write_manifest(str(tmp_path), 2, parts)
    before = [rows_of(store) for store in stores]
    after = []
    for i in range(servers):
        copy, origin = restored(tmp_path, i, servers)
        assert origin == f"checkpoint 2 of 3 servers in {tmp_path}"
        after.append(rows_of(copy))
    for name in ("a", "b"):
        expected = {row: bits for server in before for row, bits in server[name].items()}
        found = {row: bits for server in after for row, bits in server[name].items()}
        assert found == expected
        assert sum(len(server[name]) for server in after) == len(expected)
        assert all(server[name] for server in after)
    assert snapshot.next_number(str(tmp_path), servers) == 3


def test_rows_keep_their_age_though_servers_have_had_other_times(tmp_path):
    stores = [start_server(i) for i in range(2)]
    saved = [Checkpoints(store, str(tmp_path), i, 2) for i, store in enumerate(stores)]
    for checkpoints in saved:
        checkpoints.restore()
    worker = Worker(stores)
    worker.lookup(worker.table("a", 1), np.arange(100))
    parts = [checkpoints.save(1) for checkpoints in saved]
    snapshot.write_manifest(str(tmp_path), 1, parts)
    # The first one was down for an hour once: its clock is behind, and so are its rows' times.
    folder = layout.directory(str(tmp_path), 0, 2)
    first = snapshot.read(layout.path(folder, 1, "npz"))
    snapshot.write(folder, dataclasses.replace(first, time=first.time - 3600))
    copy, _ = restored(tmp_path, 0, 1)
    ticks = [
        {int.from_bytes(row[:4], "little") for row in rows_of(store)["a"].values()}
        for store in (*stores, copy)
    ]
    expected = {tick + 3600 * 16 for tick in ticks[0]} | ticks[1]
    assert all(min(abs(tick - other) for other in expected) <= 16 for tick in ticks[2])
    assert max(ticks[2]) - min(ticks[2]) > 3500 * 16


def test_shards_go_where_workers_ask_for_them(tmp_path):
    folder = layout.directory(str(tmp_path), 0, 1)
    shards = {
        "w": np.array([1, 2], np.float32),
        "x/rows_0_of_2": np.array([3], np.float32),
        "x/rows_1_of_2": np.array([4], np.float32),
    }
    written = snapshot.write(folder, snapshot.Snapshot(4, shards, np.array([], np.uint64)))
    snapshot.write_manifest(str(tmp_path), 4, [written])
    store, _ = restored(tmp_path, 1, 2)
    worker = Worker([store])

    def make(name, *parts):
        shards, first = [], 0
        for part, count in parts:
            shards.append(_Shard(0, part, first, count))
            first += count
        number = worker.client.parameters.add(name, tf.float32, shards)
        return (
            worker.client.parameters.initial_value(number, tf.fill([first], -1.0)).numpy().tolist()
        )

    assert store.stats().shards == 0
    assert make("w", ("w", 2)) == [1, 2]
    assert make("x", ("x/rows_0_of_2", 1), ("x/rows_1_of_2", 1)) == [3, 4]
    assert make("new", ("new", 1)) == [-1]
    with pytest.raises(tf.errors.InvalidArgumentError, match="split into as many parts as it was"):
        make("x of one part", ("x", 2))
    copy, _ = restored(tmp_path, 1, 2)
    worker = Worker([copy])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"'w': expected float32\[2\], as in"):
        make("w", ("w", 3))


class _Shard:
    def __init__(self, server, name, first, count):
        self.server, self.name, self.first, self.count = server, name, first, count
