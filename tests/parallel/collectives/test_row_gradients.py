"""Gradients that are rows: their sums, and their bytes on the network."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from support.processes.ranks import on_ranks
from tfdist import ops
from tfdist.config.cluster import Cluster
from tfdist.job import process

FLOATS = ("float16", "bfloat16", "float32", "float64")
DTYPES = (*FLOATS, "int8", "int16", "int32", "int64", "uint8")


def join() -> ops.Communicator:
    return process.current.join(Cluster.from_environment()).communicator


def slices(rank, ids, width, table_rows, dtype="float32", id_dtype="int64"):
    """Row i of a rank holds rank + 1, i and what follows."""
    values = rank + 1 + np.arange(len(ids))[:, None] + np.arange(width)[None, :]
    shape = None if table_rows is None else tf.constant([table_rows, width])
    rows = tf.constant(values.reshape(len(ids), width), dtype)
    return tf.IndexedSlices(rows, tf.constant(ids, id_dtype, [len(ids)]), shape)


def total(size, ids_of, width, table_rows):
    """The dense sum of all ranks' `slices`, and which rows any rank has."""
    sums, seen = np.zeros((table_rows, width)), set()
    for rank in range(size):
        ids = ids_of(rank)
        values = rank + 1 + np.arange(len(ids))[:, None] + np.arange(width)[None, :]
        np.add.at(sums, np.array(ids, int), values.reshape(len(ids), width))
        seen.update(ids)
    return sums, sorted(seen)


def check(reduced, sums, seen, factor=1.0):
    ids = reduced.indices.numpy().tolist()
    assert sorted(ids) == seen  # each once, and none that no rank has
    np.testing.assert_array_equal(
        np.asarray(reduced.values, "float64"), (sums[ids] * factor).reshape(reduced.values.shape)
    )


@on_ranks(1, 2, 3)
def test_rows_of_equal_ids_are_added(ctx):
    """The first rank has none, each other one repeats ids of its own and shares some."""
    comm = join()

    def ids_of(rank):
        return [7, 2, 7, 2 + rank, 7, 90 - rank][: 6 * min(rank, 1)]

    for dtype in DTYPES:
        for id_dtype in ("int32", "int64"):
            for table_rows in (100, None):  # rows are fewer, or unknown
                mine = slices(ctx.rank, ids_of(ctx.rank), 3, table_rows, dtype, id_dtype)
                (reduced,) = ops.fused_all_reduce([mine], comm)
                assert reduced.values.dtype == dtype and reduced.indices.dtype == id_dtype
                check(reduced, *total(ctx.size, ids_of, 3, 100))
    (nothing,) = ops.fused_all_reduce([slices(0, [], 3, 100)], comm)
    assert nothing.values.shape == (0, 3)


def _bytes_sent(comm, reduce):
    before = comm.stats().bytes_sent
    result = reduce()
    return result, comm.stats().bytes_sent - before


@on_ranks(2, 3)
def test_what_travels_is_the_least(ctx):
    """Rows of a big table, and of a small one until they are more than it."""
    comm = join()
    counts = 16  # bytes by which a rank tells the others of its rows

    def few_of(rank):
        return [5, 100_000 * rank, 5, 9, 5]

    mine = slices(ctx.rank, few_of(ctx.rank), 16, 1_000_000)
    reduced, sent = _bytes_sent(comm, lambda: ops.fused_all_reduce([mine], comm)[0])
    wanted = {}
    for rank in range(ctx.size):
        for i, row in enumerate(few_of(rank)):
            wanted[row] = wanted.get(row, 0) + rank + 1 + i + np.arange(16)
    assert sorted(reduced.indices.numpy().tolist()) == sorted(wanted)
    for row, values in zip(reduced.indices.numpy(), reduced.values.numpy(), strict=True):
        np.testing.assert_array_equal(values, wanted[row])
    # Each rank has three ids, once each; in a ring it passes on all blocks but one.
    assert sent == (ctx.size - 1) * (counts + 3 * (16 * 4 + 8))

    def many_of(rank):
        return [i % 9 for i in range(rank, rank + 400)]  # row 9 is no rank's

    for dtype in DTYPES:
        results = {}
        for table_rows in (10, None):
            # The sums stay small: they are exact in every dtype.
            ones = tf.ones([400, 4], dtype)
            shape = None if table_rows is None else tf.constant([table_rows, 4])
            mine = tf.IndexedSlices(ones, tf.constant(many_of(ctx.rank), tf.int64), shape)
            results[table_rows] = _bytes_sent(
                comm,
                lambda mine=mine: ops.fused_all_reduce([mine], comm, "mean")[0],
            )
        (dense, as_table), (rows, as_rows) = results[10], results[None]
        order = np.argsort(rows.indices)
        np.testing.assert_array_equal(dense.indices, np.arange(9))
        np.testing.assert_array_equal(dense.indices, rows.indices.numpy()[order])
        np.testing.assert_array_equal(dense.values, tf.gather(rows.values, order))
        if dtype == "float64":
            everyones = sum((many_of(rank) for rank in range(ctx.size)), [])
            np.testing.assert_allclose(dense.values[:, 1], np.bincount(everyones) / ctx.size)
        if dtype == "float32":  # 9 rows a rank of 24 bytes, or 10 rows of 20 bytes twice
            assert as_table < as_rows == (ctx.size - 1) * (counts + 9 * 24)
