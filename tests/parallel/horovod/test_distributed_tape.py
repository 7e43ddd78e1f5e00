"""`tfdist.DistributedGradientTape` in loops of the user's own."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from parallel.horovod import rank_shares
from parallel.horovod.rank_shares import own_rows
from support.processes.ranks import on_ranks
from support.training import models
from support.training.models import ADAPTIVE, EXACT, identical

STEPS = 8
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _train(optimizer, batches, wrap=lambda tape: tape, broadcast=False):
    model = keras.Sequential(
        [keras.Input((models.COLUMNS,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(3)]
    )
    optimizer.build(model.trainable_variables)
    if broadcast:
        tfdist.broadcast_variables([*model.weights, *optimizer.variables])

    @tf.function
    def step(features, labels):
        with tf.GradientTape() as tape:
            loss = LOSS(labels, model(features, training=True))
        variables = model.trainable_variables
        optimizer.apply(wrap(tape).gradient(loss, variables), variables)

    for batch in batches:
        step(*batch)
    return [*model.get_weights(), *(v.numpy() for v in optimizer.variables)]


@on_ranks(2, check=identical)
def test_loop_equals_one_process(ctx):
    tfdist.init()
    features, labels = models.examples(STEPS * 64)
    own = models.batches(*(own_rows(array, ctx.rank, 2) for array in (features, labels)), 32)
    results = []
    for make, tolerance in (
        (lambda: keras.optimizers.SGD(0.05, momentum=0.9), EXACT),
        (lambda: keras.optimizers.Adam(), ADAPTIVE),
    ):
        keras.utils.set_random_seed(ctx.rank)
        trained = _train(make(), own, tfdist.DistributedGradientTape, broadcast=True)
        if ctx.rank == 0:
            keras.utils.set_random_seed(0)
            alone = _train(make(), models.batches(features, labels, 64))
            assert models.difference(trained, alone) <= tolerance
        results += trained
    return results


@on_ranks(3, check=identical)
def test_gradients(ctx):
    """Structures, None and rows; several calls of a persistent tape; errors that name ranks."""
    tfdist.init()
    with pytest.raises(ValueError, match='expected gradient_reduction to be "mean" or "sum"'):
        tfdist.DistributedGradientTape(tf.GradientTape(), "median")
    with pytest.raises(ValueError, match=r"such as tfdist.compression.compressor\(TopK\("):
        tfdist.DistributedGradientTape(tf.GradientTape(), compression="topk")
    table = tf.Variable(tf.reshape(tf.range(8.0), [4, 2]))
    point, idle = tf.Variable([1.0, 2.0]), tf.Variable(0.0)
    scale = 1.0 + ctx.rank
    with tfdist.DistributedGradientTape(tf.GradientTape(persistent=True), "sum") as tape:
        rows = tf.gather(table, [ctx.rank, 3])
        loss = scale * (tf.reduce_sum(rows) + tf.reduce_sum(point**2))
        same = tf.square(point)
    with pytest.raises(ValueError, match="is one already"):
        tfdist.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, {"table": table, "others": [point, idle]})
    assert gradients["others"][1] is None
    np.testing.assert_array_equal(gradients["others"][0], 6 * np.array([2.0, 4.0]))
    assert isinstance(gradients["table"], tf.IndexedSlices)
    assert len(np.unique(gradients["table"].indices)) == gradients["table"].indices.shape[0] == 4
    dense, loose = rank_shares.values_of(
        [gradients["table"], tape.gradient(loss, idle, unconnected_gradients="zero")]
    )
    np.testing.assert_array_equal(dense, np.repeat([[1.0], [2.0], [3.0], [6.0]], 2, axis=1))
    assert loose == 0.0
    # The tape's own methods are untouched.
    assert [v.ref() for v in tape.watched_variables()] == [table.ref(), point.ref()]
    np.testing.assert_array_equal(tape.jacobian(same, point), np.diag([2.0, 4.0]))
    return [dense]


@on_ranks(2, check=identical)
def test_compression(ctx):
    """Values in 16 bits are rounded; values that a rank does not send come in the next step."""
    tfdist.init()
    weights = keras.Variable(np.zeros(4), dtype="float32")
    none = tfdist.Compression.none
    top = tfdist.compression.compressor(tfdist.compression.TopK(0.25, min_elements=1))
    results = []
    for compression in (tfdist.compression.BF16(min_elements=1), none, top, top, top):
        with tf.GradientTape() as tape:
            slope = tf.constant([4.0, 3.01, 0.0, 1.0]) * (1.0 + ctx.rank)
            loss = tf.reduce_sum(slope * weights.value)
        tape = tfdist.DistributedGradientTape(tape, "sum", compression)
        (gradient,) = tape.gradient(loss, [weights])
        results.append(gradient.numpy())
    np.testing.assert_allclose(results[0], [12.0, 9.03, 0.0, 3.0], rtol=1 / 128)
    assert np.all(results[0].view(np.uint32) % 2**16 == 0)  # all of them are bfloat16
    np.testing.assert_allclose(results[1], [12.0, 9.03, 0.0, 3.0], rtol=1e-6)
    np.testing.assert_allclose(results[2:], [[12.0, 0, 0, 0], [0, 18.06, 0, 0], [24.0, 0, 0, 0]])
    return results


@on_ranks(2)
def test_ranks_that_disagree(ctx):
    tfdist.init()
    variable = tf.Variable(tf.ones([2 + ctx.rank]))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"rank {ctx.rank} of 2.*from rank"):
        tfdist.DistributedGradientTape(tape).gradient(loss, variable)
