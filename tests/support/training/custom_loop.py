"""A custom training loop, the same under every strategy and without one."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from support.training import models

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


class Trained(NamedTuple):
    """The result of a loop; variables are in the order in which they were made."""

    weights: list[np.ndarray]
    slots: list[np.ndarray]
    losses: list[np.ndarray]  # the mean over the global batch, for every step
    outputs: np.ndarray  # of the last global batch, in its order


def train(
    strategy: tf.distribute.Strategy, name: str, options: dict[str, Any], batch: int, steps: int
) -> Trained:
    """Trains a small classifier with `strategy.run`; the caller has set the seed.

    Args:
      strategy: any, the default one too.
      name: of a class in `keras.optimizers`.
      options: its arguments.
      batch: rows in a global batch.
      steps: how many batches.
    """
    with strategy.scope():
        model = keras.Sequential(
            [keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(models.CLASSES)]
        )
        model.build((None, models.COLUMNS))
        optimizer = getattr(keras.optimizers, name)(**options)
        optimizer.build(model.trainable_variables)
        rows = tf.Variable(0, aggregation=tf.VariableAggregation.SUM, trainable=False)

    def replica_step(features, labels):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(LOSS(labels, model(features))) / batch
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        rows.assign_add(tf.shape(labels)[0])
        return loss, model(features)

    @tf.function
    def step(features, labels):
        loss, outputs = strategy.run(replica_step, args=(features, labels))
        return strategy.reduce("SUM", loss, axis=None), strategy.gather(outputs, axis=0)

    data = strategy.experimental_distribute_dataset(models.dataset(batch * steps, batch))
    losses, outputs = zip(*(step(*part) for part in data), strict=True)
    assert rows.numpy() == batch * steps
    return Trained(
        model.get_weights(),
        [v.numpy() for v in optimizer.variables],
        [loss.numpy() for loss in losses],
        outputs[-1].numpy(),
    )


def assert_same(left: Trained, right: Trained, tolerance: float) -> None:
    """Asserts that two loops agree."""
    assert models.difference(left.weights, right.weights) <= tolerance
    assert models.difference(left.slots, right.slots) <= tolerance
    assert models.difference(left.losses, right.losses) <= tolerance
    assert models.difference([left.outputs], [right.outputs]) <= tolerance
