"""`StreamingDiLoCo`: fragments that are synchronized in turn, beside the training."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import on_ranks
from support.training import models, quadratics
from support.training.models import EXACT, difference, identical
from tfdist.rules import DiLoCo, StreamingDiLoCo

H, EPOCHS = 4, 2
ETA, ZETA = 0.5, 0.8


def outer():
    return keras.optimizers.SGD(ZETA, momentum=ETA, nesterov=True)


# One fragment follows the same recurrence.
@pytest.mark.long(covered_by="test_fragments_follow_the_recurrence")
@on_ranks(2, check=identical)
def test_one_fragment_without_delay_is_diloco(ctx):
    """With moving statistics, a last round that is short, and another optimizer in the rounds."""
    found = []
    for rule in (DiLoCo(outer()), StreamingDiLoCo(outer())):
        with tfdist.LocalUpdateStrategy(H, rule).scope():
            keras.utils.set_random_seed(0)
            normal = keras.layers.BatchNormalization(momentum=0.8)
            model = models.built_classifier(keras.optimizers.Adam(0.05), middle=[normal])
        model.fit(models.dataset(6 * 16 + 3, 16), epochs=EPOCHS, verbose=0)
        found.append(model.get_weights())
    assert difference(*found) <= EXACT
    return found[1]


class Two(keras.layers.Layer):
    """Two independent weights of the same quadratic: their mean loss has half the gradient."""

    def build(self, input_shape):
        self.first = self.add_weight(shape=(), initializer="zeros", name="first")
        self.second = self.add_weight(shape=(), initializer="zeros", name="second")

    def call(self, inputs):
        h, b = inputs[:, 0], inputs[:, 1]
        return 0.5 * h * ((self.first - b) ** 2 + (self.second - b) ** 2)


def recurrence(steps, offsets, delay, mixing):
    """Both weights after an epoch of `steps` from 0, in float64, on the schedule of the paper."""
    ends = []
    for offset in offsets:
        x, anchor, velocity, since, sent = [0.0, 0.0], 0.0, 0.0, 0, None

        def merge(gradient, anchor, velocity):
            velocity = ETA * velocity - ZETA * gradient
            return anchor + ETA * velocity - ZETA * gradient, velocity

        for step in range(1, steps + 1):
            x = [quadratics.alone(x[rank], rank, 1) for rank in (0, 1)]
            since += 1
            if delay and sent is not None and (step - offset - delay) % H == 0:
                anchor, velocity = merge(sent, anchor, velocity)
                x = [mixing * value + (1 - mixing) * anchor for value in x]
                sent = None
            if (step - offset) % H == 0:
                sent, since = anchor - np.mean(x), 0
                if not delay:
                    anchor, velocity = merge(sent, anchor, velocity)
                    x = [mixing * value + (1 - mixing) * anchor for value in x]
                    sent = None
        if sent is not None:
            anchor, velocity = merge(sent, anchor, velocity)
            x = [mixing * value + (1 - mixing) * anchor for value in x]
        if since:
            anchor, velocity = merge(anchor - np.mean(x), anchor, velocity)
        ends.append(anchor)
    return ends


@pytest.mark.long("*-11", covered_by="the other cases")
@pytest.mark.parametrize("steps_per_execution", [1, 11])
@on_ranks(2, check=identical)
def test_fragments_follow_the_recurrence(ctx, steps_per_execution):
    """Eleven steps of quadratics: fragments end at other points, as their schedules differ."""
    results = []
    for delay, mixing in ((0, 0.0), (1, 0.0), (3, 0.5)):
        rule = StreamingDiLoCo(outer(), fragments=2, delay=delay, mixing=mixing)
        strategy = tfdist.LocalUpdateStrategy(H, rule)
        with strategy.scope():
            model = keras.Sequential([keras.Input((2,)), Two()])
            model.compile(
                keras.optimizers.SGD(quadratics.RATE),
                lambda y_true, y_pred: y_pred,
                steps_per_execution=steps_per_execution,
            )
        model.fit(quadratics.rows(11), verbose=0)
        expected = recurrence(11, (2, 4), delay, mixing)
        assert abs(expected[0] - expected[1]) > 1e-3
        assert model.get_weights() == pytest.approx(expected, abs=2e-6)
        results += model.get_weights()
    return results


@on_ranks(2)
def test_training_goes_on_while_a_fragment_travels(ctx):
    """Worker 1 joins the exchange only after worker 0 has told that it made a step beyond."""
    strategy = tfdist.LocalUpdateStrategy(4, StreamingDiLoCo(delay=2))
    with strategy.scope():
        weight = keras.Variable(0.0)
        optimizer = keras.optimizers.SGD(1.0)

    @tf.function
    def step(own):
        strategy.run(lambda g: optimizer.apply([g / 2], [weight]), args=(own,))

    def make(steps):
        for _ in range(steps):
            step(tf.constant(1.0))

    def meet():
        tfdist.ops.barrier(strategy.communicator, timeout=30)

    make(5 if ctx.rank == 0 else 3)
    assert weight.numpy() == -(5 if ctx.rank == 0 else 3)
    meet()
    make(0 if ctx.rank == 0 else 2)
    make(1)  # merged: Nesterov's first step is 0.7 (1 + 0.9) times the mean, 4
    assert weight.numpy() == pytest.approx(-0.7 * 1.9 * 4)
