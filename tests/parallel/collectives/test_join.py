"""Ranks that run out of data join until all have."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import tfdist
from support.processes.ranks import on_ranks
from tfdist import ops


@on_ranks(1, 3)
def test_ranks_with_less_data_join(ctx):
    tfdist.init()
    rank, size = ctx.rank, ctx.size

    @tf.function
    def step(x):
        rows = tf.fill([rank + 1], x)
        return ops.all_reduce(x), ops.all_reduce(x, reduce_op="mean"), ops.all_gather(rows)

    for epoch in range(2):
        batches = 2 + 2 * ((rank + epoch) % size)
        for batch in range(batches):
            there = [r for r in range(size) if batch < 2 + 2 * ((r + epoch) % size)]
            total, mean, rows = step(tf.constant(1.0 + rank))
            assert float(total) == sum(1.0 + r for r in there)
            assert abs(float(mean) - float(total) / size) < 1e-6
            np.testing.assert_array_equal(rows, np.repeat(there, [r + 1 for r in there]) + 1.0)
            # eagerly too, and a list of dtypes
            one, two = ops.all_reduce([tf.constant(rank + 1), tf.constant(2.0)], reduce_op="max")
            assert int(one) == max(there) + 1 and float(two) == 2.0
        last = tfdist.join() if epoch == 0 else int(tf.function(ops.join)())
        assert last == (size - 1 - epoch) % size
        # All continue together.
        assert float(ops.all_reduce(tf.constant(1.0))) == size
        words = ops.broadcast(tf.constant(f"of {rank}"), None, size - 1)
        assert words.numpy() == f"of {size - 1}".encode()
