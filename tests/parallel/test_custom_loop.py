"""A training loop of the user's own, with `strategy.run`, equals one process."""

from __future__ import annotations

import keras
import models
import numpy as np
import pytest
import tensorflow as tf
from models import ADAPTIVE, EXACT, difference, examples, identical
from ranks import on_ranks

import tfdist

STEPS = 20
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def _model():
    model = keras.Sequential(
        [keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(models.CLASSES)]
    )
    model.build((None, models.COLUMNS))
    return model


def _mean_loss(model, features, labels, batch):
    return tf.reduce_sum(LOSS(labels, model(features))) / batch


def _train_alone(model, optimizer, batch):
    losses = []
    for features, labels in models.dataset(batch * STEPS, batch):
        with tf.GradientTape() as tape:
            loss = _mean_loss(model, features, labels, batch)
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        losses.append(loss.numpy())
    return losses


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
    make_optimizer = getattr(keras.optimizers, name)
    keras.utils.set_random_seed(0)
    alone, alone_optimizer = _model(), make_optimizer(**options)
    if ctx.rank == 0:
        alone_losses = _train_alone(alone, alone_optimizer, batch)

    strategy = tfdist.MultiWorkerMirroredStrategy()
    keras.utils.set_random_seed(ctx.rank)
    with strategy.scope():
        model, optimizer = _model(), make_optimizer(**options)
        optimizer.build(model.trainable_variables)
        rows = tf.Variable(0, aggregation=tf.VariableAggregation.SUM, trainable=False)

    def replica_step(features, labels):
        with tf.GradientTape() as tape:
            loss = _mean_loss(model, features, labels, batch)
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        rows.assign_add(tf.shape(labels)[0])
        return loss, model(features)

    @tf.function
    def step(features, labels):
        loss, outputs = strategy.run(replica_step, args=(features, labels))
        return strategy.reduce("SUM", loss, axis=None), strategy.gather(outputs, axis=0)

    data = strategy.experimental_distribute_dataset(models.dataset(batch * STEPS, batch))
    results = [step(features, labels) for features, labels in data]
    losses, outputs = zip(*results, strict=True)
    assert rows.numpy() == batch * STEPS
    weights = model.get_weights()
    if ctx.rank == 0:
        assert difference(weights, alone.get_weights()) <= tolerance
        slots = [v.numpy() for v in optimizer.variables]
        assert difference(slots, [v.numpy() for v in alone_optimizer.variables]) <= tolerance
        assert difference(losses, alone_losses) <= tolerance
        # The last outputs, in the order of the batch.
        last = examples(batch * STEPS)[0][-batch:]
        assert difference([outputs[-1]], [alone(last)]) <= 10 * tolerance
    return [*weights, *(loss.numpy() for loss in losses), outputs[-1].numpy()]


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
