"""Gradients of the collectives against closed forms: eager, in functions and in v1 graphs.

Every rank's loss is the sum of its results times weights of its own. The right gradient follows
from all ranks' weights, which every rank can compute.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import on_ranks
from tfdist import ops


def weights(rank: int, shape) -> np.ndarray:
    return ((np.arange(int(np.prod(shape))) * 7 + 3 * rank) % 11 + 1.0).reshape(shape)


def gradients(collective, x: np.ndarray, rank: int) -> list[np.ndarray]:
    """The gradient of this rank's loss, in every way that TensorFlow has of computing it."""

    def loss(x):
        result = collective(x)
        return tf.reduce_sum(result * tf.constant(weights(rank, result.shape)))

    def taped(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = loss(x)
        return tape.gradient(value, x)

    compiled = tf.function(loss)
    with tf.GradientTape() as tape:
        variable = tf.Variable(x)
        # An operation of its own, so that the whole backward function is traced.
        value = compiled(variable * 1.0)
    found = [
        taped(tf.constant(x)),
        tf.function(taped)(tf.constant(x)),
        tape.gradient(value, variable),
    ]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        placed = tf.constant(x)
        found.append(session.run(tf.gradients(loss(placed), placed)[0]))
    return [np.asarray(gradient) for gradient in found]


def check(collective, shape: tuple[int, ...], rank: int, expected: np.ndarray) -> None:
    for gradient in gradients(collective, weights(5 * rank + 2, shape), rank):
        np.testing.assert_allclose(gradient, expected, rtol=1e-12)


def gradients_of_reductions(ctx) -> None:
    rank, size = ctx.rank, ctx.size
    shape = (size + 2, 2)
    total = sum(weights(r, shape) for r in range(size))
    check(ops.all_reduce, shape, rank, total)
    check(lambda x: ops.all_reduce(x, reduce_op="mean"), shape, rank, total / size)
    root = size - 1
    check(lambda x: ops.reduce(x, None, root), shape, rank, weights(root, shape))
    check(lambda x: ops.reduce(x, None, 0, "mean"), shape, rank, weights(0, shape) / size)
    own = total if rank == root else np.zeros(shape)
    check(lambda x: ops.broadcast(x, None, root), shape, rank, own)
    share, more = divmod(shape[0], size)
    parts = np.concatenate([weights(r, (share + (r < more), 2)) for r in range(size)])
    check(ops.reduce_scatter, shape, rank, parts)
    scales = {"prescale_factor": 0.5, "postscale_factor": 3.0}
    scaled = lambda x: ops.all_reduce(x, **scales)  # noqa: E731
    check(scaled, shape, rank, 1.5 * total)
    scaled = lambda x: ops.reduce_scatter(x, reduce_op="mean", **scales)  # noqa: E731
    check(scaled, shape, rank, 1.5 * parts / size)
    check(lambda x: ops.reduce_scatter(x, None, "mean"), shape, rank, parts / size)


def gradients_of_extremes_and_products(ctx) -> None:
    rank, size = ctx.rank, ctx.size
    # the largest on the last rank; the same on all; a zero on rank 0
    x = np.array([1.0 + rank, 5.0, 2.0 + rank if rank else 0.0])
    first, last = float(rank == 0), float(rank == size - 1)
    others = np.prod([1.0 + r for r in range(size) if r != rank])
    nonzero = np.prod([2.0 + r for r in range(1, size)])
    slopes = {
        "max": np.array([last, 1 / size, last]),
        "min": np.array([first, 1 / size, first]),
        "product": np.array([others, 5.0 ** (size - 1), nonzero * first]),
    }
    share, more = divmod(3, size)
    for reduce_op, slope in slopes.items():
        for collective, upstream in (
            (ops.all_reduce, sum(weights(r, (3,)) for r in range(size))),
            (lambda x, reduce_op: ops.reduce(x, None, 1, reduce_op), weights(1, (3,))),
            (
                ops.reduce_scatter,
                np.concatenate([weights(r, (share + (r < more),)) for r in range(size)]),
            ),
        ):
            reducing = functools.partial(collective, reduce_op=reduce_op)
            for gradient in gradients(reducing, x, rank):
                np.testing.assert_allclose(gradient, upstream * slope, rtol=1e-12)


def gradients_of_rows(ctx) -> None:
    rank, size = ctx.rank, ctx.size
    shape = (rank + 1, 2)
    rows = size * (size + 1) // 2
    mine = slice(rank * (rank + 1) // 2, (rank + 1) * (rank + 2) // 2)
    total = sum(weights(r, (rows, 2)) for r in range(size))
    # v1 graphs and functions do not know how many rows come: the weights must be told
    known = lambda x: tf.ensure_shape(x, (rows, 2))  # noqa: E731
    check(lambda x: known(ops.all_gather(x)), shape, rank, total[mine])
    root = size - 1
    there = (rows if rank == root else 0, 2)
    gathered = lambda x: tf.ensure_shape(ops.gather(x, None, root), there)  # noqa: E731
    check(gathered, shape, rank, weights(root, (rows, 2))[mine])

    whole = (size + 1, 2)
    share, more = divmod(size + 1, size)
    part = [(share + (r < more), 2) for r in range(size)]
    scattered = lambda x: tf.ensure_shape(ops.scatter(x, None, root), part[rank])  # noqa: E731
    parts = np.concatenate([weights(r, part[r]) for r in range(size)])
    check(scattered, whole, rank, parts if rank == root else np.zeros(whole))

    equal = (2 * size, 2)
    back = [weights(r, equal)[2 * rank : 2 * rank + 2] for r in range(size)]
    as_many = lambda x: tf.ensure_shape(ops.all_to_all(x), equal)  # noqa: E731
    check(as_many, equal, rank, np.concatenate(back))
    # rank r has r + 1 rows for each rank
    share = [r + 1 for r in range(size)]
    come = (sum(share), 2)
    before = slice(sum(share[:rank]), sum(share[: rank + 1]))
    back = [weights(r, come)[before] for r in range(size)]
    differing = lambda x: tf.ensure_shape(ops.all_to_all(x), come)  # noqa: E731
    check(differing, (size * share[rank], 2), rank, np.concatenate(back))
    # rank r sends r + s rows to rank s
    splits = [rank + r for r in range(size)]
    sent = (sum(splits), 2)

    def uneven(x):
        return tf.ensure_shape(ops.all_to_all(x, splits=splits)[0], sent)

    back = []
    for r in range(size):
        begin = sum(r + s for s in range(rank))
        count = sum(r + s for s in range(size))
        back.append(weights(r, (count, 2))[begin : begin + r + rank])
    check(uneven, sent, rank, np.concatenate(back))


def gradients_of_rows_of_tables(ctx) -> None:
    """Each row has the gradient of the reduced row that it became part of."""
    rank, size = ctx.rank, ctx.size
    table = (size + 3, 2)
    # a common row, a row twice, and a row of this rank alone; rank 0 has none
    ids = [size, rank, size, size + 2][: 4 * min(rank, 1)]
    slopes = sum(weights(r, table) for r in range(size))
    for dtype in (tf.int32, tf.int64):
        half_of_mean = {"reduce_op": "mean", "prescale_factor": 0.5}
        for scale, options in ((1, {}), (0.5 / size, half_of_mean)):

            def of_table(x, dtype=dtype, options=options):
                own = tf.IndexedSlices(x, tf.constant(ids, dtype), tf.constant(table))
                reduced = ops.all_reduce(own, **options)
                # their order is the ranks' own affair
                return tf.math.unsorted_segment_sum(reduced.values, reduced.indices, table[0])

            check(of_table, (len(ids), 2), rank, slopes[np.array(ids, int)] * scale)


@on_ranks(2)
def test_gradients_of_lists_and_of_gradients(ctx):
    tfdist.init()
    rank = ctx.rank
    single, double = tf.constant([1.0 + rank]), tf.constant([2.0], tf.float64)
    with tf.GradientTape() as tape:
        tape.watch([single, double])
        one, count, two = ops.all_gather([single, tf.constant([rank]), double])
        # no rank uses `two`
        value = tf.reduce_sum(one * [3.0, 5.0]) * tf.cast(tf.reduce_sum(count), tf.float32)
    first, second = tape.gradient(value, [single, double])
    np.testing.assert_array_equal(first, [6.0 if rank == 0 else 10.0])
    assert second is None or not np.any(second)
    with tf.GradientTape() as tape:
        tape.watch([single, double])
        one, two = ops.all_gather([single, double])
        value = tf.cast(tf.reduce_sum(one * [3.0, 5.0]), tf.float64) * tf.reduce_sum(two * two)
    gradients = tape.gradient(value, [single, double])
    # 3 * 1 + 5 * 2 times 2 * 2.0 on each of the ranks; 3 or 5 times 8, likewise.
    for found, expected, dtype in zip(
        gradients, ([2 * 8 * (3.0 + 2 * rank)], [2 * 13 * 4.0]), ("float32", "float64"), strict=True
    ):
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, expected)
    x = tf.Variable([2.0, 3.0])
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            value = ops.all_reduce(x * x * (1.0 + rank))  # 3 x^2
        slope = inner.gradient(value, x)  # its upstream is 1 on both: 2 * 2 x (1 + r)
    np.testing.assert_allclose(slope, 4 * (1 + rank) * np.array([2.0, 3.0]))
    np.testing.assert_allclose(outer.gradient(slope, x), [4.0 * (1 + rank)] * 2)


def gradients_through_loops_and_branches(ctx) -> None:
    rank, size = ctx.rank, ctx.size

    def looped(x):
        for _ in tf.range(3):
            x = ops.all_reduce(x)
        return x

    def branched(x):
        if tf.reduce_sum(ops.all_reduce(x)) > 0:
            return ops.all_reduce(x) * 2.0
        return ops.broadcast(x)

    # sums thrice: size^2 times the sum
    total = sum(weights(r, (4,)) for r in range(size))
    for body, expected in ((looped, size**2 * total), (branched, 2 * total)):
        compiled = tf.function(body)

        @tf.function
        def step(x, compiled=compiled):
            with tf.GradientTape() as tape:
                tape.watch(x)
                value = tf.reduce_sum(compiled(x) * tf.constant(weights(rank, (4,))))
            return tape.gradient(value, x)

        for _ in range(2):
            x = tf.constant(weights(rank + 3, (4,)))
            np.testing.assert_allclose(step(x), expected, rtol=1e-12)


@pytest.mark.long("3-ranks", covered_by="the other cases")
@on_ranks(2, 3)
def test_gradients_of_every_collective(ctx):
    tfdist.init()
    gradients_of_reductions(ctx)
    gradients_of_extremes_and_products(ctx)
    gradients_of_rows(ctx)
    gradients_of_rows_of_tables(ctx)
    gradients_through_loops_and_branches(ctx)
