"""Ranks with different numbers of batches: a rank without more joins, and the others continue."""

from __future__ import annotations

import keras
import tensorflow as tf

import tfdist
from support.processes.ranks import on_ranks
from support.training import models
from support.training.models import EXACT, identical


@on_ranks(3, check=identical)
def test_ranks_run_out_of_data(ctx):
    """Rank r has 2 + r batches; what is missing counts as a gradient of zero."""
    tfdist.init()
    features, labels = models.examples(9 * 8)
    parts = models.batches(features, labels, 8)
    own = [parts[0:2], parts[2:5], parts[5:9]]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def build():
        keras.utils.set_random_seed(0)
        return models.built_classifier(keras.optimizers.SGD(0.1, momentum=0.5))

    model = build()
    tfdist.DistributedOptimizer(model.optimizer)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        variables = model.trainable_variables
        model.optimizer.apply(tape.gradient(value, variables), variables)

    for x, y in own[ctx.rank]:
        step(tf.constant(x), tf.constant(y))
    last = tfdist.join()
    assert int(last) == 2
    tfdist.broadcast_variables([*model.weights, *model.optimizer.variables], int(last))

    alone = build()
    for number in range(4):
        with tf.GradientTape() as tape:
            present = [batches[number] for batches in own if number < len(batches)]
            total = tf.add_n([loss(y, alone(x, training=True)) for x, y in present]) / 3
        variables = alone.trainable_variables
        alone.optimizer.apply(tape.gradient(total, [v.value for v in variables]), variables)
    assert models.difference(model.get_weights(), alone.get_weights()) <= EXACT
    return [*model.get_weights(), *models.slots(model)]
