"""Collectives as ops: eager, in functions, in control flow and in v1 graphs, on 1 to 4 ranks."""

import numpy as np
import pytest
import tensorflow as tf

from support.processes.ranks import on_ranks
from tfdist import ops
from tfdist.config.cluster import Cluster
from tfdist.job import process


def join() -> ops.Communicator:
    return process.current.join(Cluster.from_environment()).communicator


def values(rank: int, shape: tuple[int, ...], dtype) -> np.ndarray:
    """Small integers, exact in every dtype, different on every rank."""
    count = int(np.prod(shape))
    return ((np.arange(count) * 3 + 5 * rank) % 23).reshape(shape).astype(dtype)


def total(size: int, shape: tuple[int, ...], dtype) -> np.ndarray:
    return sum(values(rank, shape, "int64") for rank in range(size)).astype(dtype)


@on_ranks(1, 2, 3, 4)
def test_all_reduce_sums_every_dtype_and_shape(ctx):
    comm = join()
    for dtype in ("float16", "bfloat16", "float32", "float64", "int32", "int64"):
        kind = tf.as_dtype(dtype).as_numpy_dtype
        for shape in ((), (1,), (0, 3), (7,), (3, 5, 2), (70001,)):
            result = ops.all_reduce(tf.constant(values(ctx.rank, shape, kind)), comm)
            assert result.dtype == dtype
            np.testing.assert_array_equal(result.numpy(), total(ctx.size, shape, kind))


@on_ranks(2, 3)
def test_a_list_travels_fused_and_keeps_its_order_across_dtypes(ctx):
    comm = join()
    shapes = [(4,), (2, 2), (0,), (), (9,)]
    dtypes = ["float32", "int32", "float32", "float64", "int32"]
    spec = list(zip(shapes, dtypes, strict=True))
    before = comm.stats().collectives
    results = ops.all_reduce([values(ctx.rank, s, d) for s, d in spec], comm)
    assert comm.stats().collectives - before == 3  # one for each dtype
    for (shape, dtype), result in zip(spec, results, strict=True):
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, total(ctx.size, shape, dtype))


@on_ranks(2, 4)
def test_mean_divides_floats_and_truncates_integers(ctx):
    comm = join()
    mean = ops.all_reduce(tf.constant([1.0 + ctx.rank, 10.0 * ctx.rank]), comm, "mean")
    np.testing.assert_allclose(mean, [1 + (ctx.size - 1) / 2, 10 * (ctx.size - 1) / 2], rtol=1e-7)
    # -1 on one rank only: tf.reduce_mean makes -1 / size zero, not -1
    integers = ops.all_reduce(tf.constant([-1 if ctx.rank == 0 else 0, 7]), comm, "mean")
    np.testing.assert_array_equal(integers, [0, 7])


@on_ranks(2, 3, 4)
def test_all_gather_concatenates_blocks_of_different_lengths(ctx):
    comm = join()
    for dtype in (tf.float32, tf.int8, tf.bool, tf.complex64):
        block = tf.cast(tf.fill([ctx.rank * 2, 3], ctx.rank), dtype)
        gathered = ops.all_gather(block, comm)
        expected = np.repeat(np.arange(ctx.size), np.arange(ctx.size) * 2)
        np.testing.assert_array_equal(
            gathered, np.tile(expected[:, None], (1, 3)).astype(dtype.as_numpy_dtype)
        )
    large = ops.all_gather(tf.fill([50_000 + ctx.rank], float(ctx.rank)), comm)
    assert float(tf.reduce_sum(large)) == sum(r * (50_000 + r) for r in range(ctx.size))


@on_ranks(2, 3, 4)
def test_broadcast_gives_the_roots_value(ctx):
    comm = join()
    for root in range(ctx.size):
        for shape in ((), (3, 2), (40_000,)):
            result = ops.broadcast(tf.constant(values(ctx.rank, shape, "float32")), comm, root)
            np.testing.assert_array_equal(result, values(root, shape, "float32"))


@on_ranks(2)
def test_inside_functions_loops_and_branches(ctx):
    comm = join()

    @tf.function
    def looped(x):
        for _ in tf.range(5):
            if tf.reduce_sum(x) < 1e6:
                x = ops.all_reduce(x, comm)
            else:
                x = ops.all_reduce(x * 0.0, comm)
        return x

    # 1 + 2 = 3 after the first pass; equal on both ranks from then on, so it doubles
    np.testing.assert_array_equal(looped(tf.constant([1.0 + ctx.rank])), [3.0 * 2**4])
    np.testing.assert_array_equal(looped(tf.constant([1.0 + ctx.rank])), [3.0 * 2**4])


@on_ranks(2)
def test_ranks_may_retrace_at_different_times(ctx):
    comm = join()

    @tf.function
    def step(x):
        return ops.all_reduce(tf.reduce_sum(x), comm)

    # Rank 0 traces once more than rank 1, as for an uneven last batch.
    lengths = [4, 4, 3 if ctx.rank == 0 else 4, 4]
    sums = [float(step(tf.ones([n]))) for n in lengths]
    assert sums == [8, 8, 7, 8]


@on_ranks(2)
def test_matching_ignores_the_order_in_which_independent_ops_start(ctx):
    comm = join()
    order = range(20) if ctx.rank == 0 else range(19, -1, -1)
    with tf.Graph().as_default():
        delayed = {i: tf.compat.v1.placeholder(tf.float32, [1000]) for i in range(20)}
        reduced = [ops.all_reduce(delayed[i], comm) for i in range(20)]
        with tf.compat.v1.Session() as session:
            for _ in range(10):
                feed = {delayed[i]: np.full([1000], 100.0 * i + ctx.rank) for i in order}
                for i, result in enumerate(session.run(reduced, feed)):
                    np.testing.assert_array_equal(result, np.full([1000], 200.0 * i + 1))


@on_ranks(2)
def test_inputs_are_never_changed(ctx):
    comm = join()
    x = tf.Variable([1.0 + ctx.rank] * 3)

    @tf.function
    def step(t):
        before = x.read_value()
        return ops.all_reduce(before, comm), before, ops.all_reduce(t, comm), t * 1.0

    constant = tf.constant([5.0 + ctx.rank] * 3)
    summed, before, total_, same = step(constant)
    np.testing.assert_array_equal(summed, [3.0] * 3)
    np.testing.assert_array_equal(before, [1.0 + ctx.rank] * 3)
    np.testing.assert_array_equal(x, [1.0 + ctx.rank] * 3)
    np.testing.assert_array_equal(total_, [11.0] * 3)
    np.testing.assert_array_equal(same, constant)


@on_ranks(2)
def test_bad_arguments_name_what_came(ctx):
    comm = join()
    with pytest.raises(tf.errors.InvalidArgumentError, match="scalar"):
        ops.all_gather(tf.constant(1.0), comm)
    with pytest.raises(tf.errors.InvalidArgumentError, match="root from 0 to 1, received 2"):
        ops.broadcast(tf.constant(1.0), comm, root=2)
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError, TypeError), match="string|T"):
        ops.all_reduce(tf.constant(["a"]), comm)
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match="reduce_op"):
        ops.all_reduce(tf.constant(1.0), comm, "median")
    assert float(ops.all_reduce(tf.constant(1.0), comm)) == 2.0


@on_ranks(1)
def test_a_closed_communicator_is_refused_by_name(ctx):
    comm = ops.Communicator(0, 1)
    assert float(ops.all_reduce(tf.constant(2.0), comm)) == 2.0
    comm.close()
    comm.close()
    with pytest.raises(tf.errors.FailedPreconditionError, match="closed"):
        ops.all_reduce(tf.constant(2.0), comm, label="late")
