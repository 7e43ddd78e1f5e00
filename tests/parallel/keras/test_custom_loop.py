"""A training loop of the user's own, with `strategy.run`, equals one process."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import on_ranks
from support.training import custom_loop
from support.training.models import ADAPTIVE, EXACT, identical

STEPS = 20


@pytest.mark.long("*momentum", covered_by="the other cases")
@pytest.mark.parametrize(
    ("name", "options", "tolerance"),
    [
        ("SGD", {"learning_rate": 0.1}, EXACT),
        ("SGD", {"learning_rate": 0.05, "momentum": 0.9}, EXACT),
        ("Adam", {}, ADAPTIVE),
    ],
    ids=["sgd", "momentum", "adam"],
)
@on_ranks(2, check=identical)
def test_loop(ctx, name, options, tolerance):
    batch = 32 * ctx.size
    if ctx.rank == 0:
        keras.utils.set_random_seed(0)
        alone = custom_loop.train(tf.distribute.get_strategy(), name, options, batch, STEPS)
    strategy = tfdist.MultiWorkerMirroredStrategy()
    keras.utils.set_random_seed(ctx.rank)
    trained = custom_loop.train(strategy, name, options, batch, STEPS)
    if ctx.rank == 0:
        custom_loop.assert_same(trained, alone, tolerance)
    return [*trained.weights, *trained.losses, trained.outputs]


@on_ranks(2, 3)
def test_step_in_a_loop_on_the_device(ctx):
    """Collectives in a `tf.while_loop`: the weight follows a closed form."""
    strategy = tfdist.MultiWorkerMirroredStrategy()
    with strategy.scope():
        weight = tf.Variable(1.0)
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build([weight])

    def replica_step(pull):
        # The loss is (weight - pull)^2 / 2, so the gradients' sum is N weight - sum(pull).
        optimizer.apply([weight - pull], [weight])

    @tf.function
    def steps(count, pull):
        for _ in tf.range(count):
            strategy.run(replica_step, args=(pull,))

    steps(tf.constant(5), tf.constant(float(ctx.rank)))
    mean = (ctx.size - 1) / 2
    expected = mean + (1.0 - mean) * (1 - 0.1 * ctx.size) ** 5
    np.testing.assert_allclose(weight.numpy(), expected, rtol=0, atol=1e-6)
