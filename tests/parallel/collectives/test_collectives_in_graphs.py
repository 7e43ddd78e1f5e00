"""Collectives in functions, branches, loops, v1 graphs and Keras layers, and their shapes there."""

from __future__ import annotations

from unittest import mock

import keras
import numpy as np
import tensorflow as tf

import tfdist
from support.processes.ranks import on_ranks
from tfdist import ops


def everything(x: tf.Tensor) -> list[tf.Tensor]:
    """One of each, of a vector whose length the ranks can share equally."""
    return [
        ops.all_reduce(x),
        ops.all_reduce(x, reduce_op="max"),
        ops.reduce(x, None, 1),
        ops.broadcast(x, None, 1),
        ops.all_gather(x),
        ops.gather(x, None, 1),
        ops.scatter(x, None, 1),
        ops.reduce_scatter(x),
        ops.all_to_all(x),
        *ops.all_to_all(x, splits=[1, tf.size(x) - 1]),
    ]


def expected(rank: int, mine: np.ndarray, theirs: np.ndarray) -> list[np.ndarray]:
    both = [mine, theirs] if rank == 0 else [theirs, mine]
    half = len(mine) // 2
    here = slice(0, half) if rank == 0 else slice(half, None)
    uneven = slice(0, 1) if rank == 0 else slice(1, None)
    pieces = [x[uneven] for x in both]
    return [
        mine + theirs,
        np.maximum(mine, theirs),
        mine + theirs if rank == 1 else np.zeros_like(mine),
        both[1],
        np.concatenate(both),
        np.concatenate(both) if rank == 1 else mine[:0],
        both[1][here],
        (mine + theirs)[here],
        np.concatenate([x[here] for x in both]),
        np.concatenate(pieces),
        np.array([len(piece) for piece in pieces]),
    ]


def rounds_of_a_loop_do_not_mix(rank: int) -> None:

    @tf.function
    def rounds(values):
        sums = tf.TensorArray(tf.float32, 200)
        # The inputs do not depend on the round before.
        for i in tf.range(200):
            sums = sums.write(i, ops.all_reduce(values[i]) + ops.all_reduce(10.0 * values[i]))
        return sums.stack()

    totals = rounds(tf.range(200.0) + 1000.0 * rank)
    np.testing.assert_array_equal(totals, 11 * (2 * np.arange(200.0) + 1000))

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        values = tf.range(200.0) + 1000.0 * rank
        _, results = tf.compat.v1.while_loop(
            lambda i, sums: i < 200,
            lambda i, sums: (i + 1, sums.write(i, ops.all_reduce(values[i]))),
            [0, tf.TensorArray(tf.float32, 200)],
            parallel_iterations=32,
        )
        totals = session.run(results.stack())
    np.testing.assert_array_equal(totals, 2 * np.arange(200.0) + 1000)


@on_ranks(2)
def test_every_collective_in_every_kind_of_graph(ctx):
    tfdist.init()
    vectors = [np.array([1.0, 2.0, 3.0, 4.0]) + 10 * rank for rank in range(2)]
    mine, theirs = vectors[ctx.rank], vectors[1 - ctx.rank]
    exact = expected(ctx.rank, mine, theirs)

    def check(results, factor=1.0):
        for i, (result, wanted) in enumerate(zip(results, exact, strict=True)):
            wanted = wanted if i == len(exact) - 1 else wanted * factor
            np.testing.assert_array_equal(result, wanted, err_msg=str(i))

    @tf.function
    def in_a_branch(x):
        if tf.reduce_sum(ops.all_reduce(x)) > 0:
            return everything(x)
        return everything(x * 0.0)

    @tf.function
    def in_a_loop(x):
        results = everything(x * 0.0)
        for i in tf.range(1, 4):
            for result, before in zip(results, everything(x * 0.0), strict=True):
                result.set_shape(before.shape)
            results = everything(x * tf.cast(i, x.dtype))
        return results

    check(everything(tf.constant(mine)))
    check(tf.function(everything)(tf.constant(mine)))
    unknown = tf.function(everything, input_signature=[tf.TensorSpec(None, tf.float64)])
    check(unknown(tf.constant(mine)))
    check(in_a_branch(tf.constant(mine)))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        placed = tf.compat.v1.placeholder(tf.float64, [4])
        results = everything(placed)
        branch = tf.compat.v1.cond(placed[0] > 0, lambda: everything(placed), lambda: results)
        loop = tf.compat.v1.while_loop(
            lambda i, x: i < 5, lambda i, x: (i + 1, ops.all_reduce(x)), [0, placed]
        )
        done = ops.barrier()
        for _ in range(3):
            check(session.run(results, {placed: mine}))
            check(session.run(branch, {placed: mine}))
            np.testing.assert_array_equal(
                session.run(loop, {placed: mine})[1], (mine + theirs) * 2.0**4
            )
            session.run(done)
    rounds_of_a_loop_do_not_mix(ctx.rank)


@on_ranks(1, 3)
def test_what_graphs_know_of_shapes(ctx):
    tfdist.init()
    known, rows, scalar = tf.TensorSpec([7, 5]), tf.TensorSpec([None, 5]), tf.TensorSpec([])
    share = {1: [7], 3: [3, 2, 2]}[ctx.size][ctx.rank]

    def shapes(function, *specs) -> list[tuple]:
        outputs = tf.function(function).get_concrete_function(*specs).outputs
        return [tuple(output.shape) for output in outputs]

    def moved(x):
        return [ops.all_gather(x), ops.gather(x), ops.reduce_scatter(x), ops.all_to_all(x)]

    alone = ctx.size == 1
    everything = 7 if alone else None
    assert shapes(moved, known) == [(everything, 5), (None, 5), (share, 5), (everything, 5)]
    assert shapes(moved, rows) == [(None, 5)] * 4
    scattered = shapes(ops.scatter, known)
    assert scattered == [(share if ctx.rank == 0 else None, 5)]
    same = lambda x: [ops.all_reduce(x), ops.reduce(x), ops.broadcast(x)]  # noqa: E731
    assert shapes(same, known) == [(7, 5)] * 3
    assert shapes(same, scalar) == [()] * 3
    uneven = lambda x: ops.all_to_all(x, splits=tf.fill([ctx.size], 1))  # noqa: E731
    assert shapes(uneven, rows) == [(None, 5), (ctx.size,)]
    strings = lambda x: [ops.all_gather(x), ops.broadcast(x)]  # noqa: E731
    words = shapes(strings, tf.TensorSpec([2, 4], tf.string))
    assert words == [(2 if alone else None, 4), (2, 4)]


class AcrossRanks(keras.layers.Layer):
    """Scales, and takes off the mean over all ranks."""

    def build(self, shape) -> None:
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")

    def call(self, x):
        x = x * self.scale
        return x - ops.all_reduce(tf.reduce_mean(x, axis=0), reduce_op="mean")


def _fit(rows, model) -> np.ndarray:
    model.compile(keras.optimizers.SGD(0.5), "mse")
    assert not model.jit_compile
    # Where there is a GPU, Keras would choose XLA.
    gpu = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
    with mock.patch("tensorflow.config.list_physical_devices", lambda: [gpu]):
        assert not model._resolve_auto_jit_compile()
    model.fit(rows, np.zeros_like(rows), batch_size=4, epochs=1, shuffle=False, verbose=0)
    return np.asarray(model.layers[-1].scale)


@on_ranks(2)
def test_a_keras_layer_that_reduces(ctx):
    tfdist.init()
    rows = np.array([[1.0], [2.0], [3.0], [4.0]], "float32") + 10 * ctx.rank
    # The mean over both is 7.5. The gradient that comes back through it cancels: the rest adds up
    # to zero.
    slope = 2 * np.mean((rows - 7.5) * rows)
    scale = _fit(rows, keras.Sequential([keras.Input((1,)), AcrossRanks()]))
    np.testing.assert_allclose(scale, [1 - 0.5 * slope], rtol=1e-5)
    # Built only by fit.
    later = _fit(rows, keras.Sequential([AcrossRanks()]))
    np.testing.assert_allclose(later, scale, rtol=1e-6)


@on_ranks(2)
def test_a_keras_layer_that_reduces_under_a_strategy(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    rows = np.array([[1.0], [2.0], [3.0], [4.0]], "float32")
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), AcrossRanks()])
        model.compile(keras.optimizers.SGD(0.5), "mse")
    model.fit(rows, np.zeros_like(rows), batch_size=4, shuffle=False, verbose=0)
    slope = 2 * np.mean((rows - 2.5) ** 2)
    np.testing.assert_allclose(model.layers[-1].scale, [1 - 0.5 * slope], rtol=1e-5)
