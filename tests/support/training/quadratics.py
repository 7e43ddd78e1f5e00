"""Workers with losses of their own: f_r(x) = h_r / 2 (x - b_r)^2 with one weight x.

With rate e a step of worker r multiplies x - b_r by 1 - e h_r, so that all that a rule does has a
closed form. Each global batch has one row for each worker.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

RATE = 0.1
CURVATURES = (1.0, 3.0)  # h
OPTIMA = (2.0, -1.0)  # b


class Quadratic(keras.layers.Layer):
    """The weight x; the input of a row, h and b, becomes f(x)."""

    def build(self, input_shape):
        self.x = self.add_weight(shape=(), initializer="zeros", name="x")

    def call(self, inputs):
        return 0.5 * inputs[:, 0] * (self.x - inputs[:, 1]) ** 2


def quadratic(optimizer=None) -> keras.Model:
    """Makes a compiled model of one weight, which is 0 at first."""
    model = keras.Sequential([keras.Input((2,)), Quadratic()])
    optimizer = keras.optimizers.SGD(RATE) if optimizer is None else optimizer
    model.compile(optimizer, loss=lambda y_true, y_pred: y_pred)
    return model


def rows(steps: int) -> tf.data.Dataset:
    """Makes the global batches of two workers, for a number of steps."""
    inputs = np.array([CURVATURES, OPTIMA], np.float32).T
    features = np.tile(inputs, (steps, 1))
    return tf.data.Dataset.from_tensor_slices((features, np.zeros(len(features)))).batch(2)


def alone(x: float, rank: int, steps: int) -> float:
    """Where a worker is that has made `steps` steps from x."""
    return OPTIMA[rank] + (x - OPTIMA[rank]) * (1 - RATE * CURVATURES[rank]) ** steps


def mean_after(x: float, steps: int) -> float:
    """The mean of both workers after they have made `steps` steps from x."""
    return (alone(x, 0, steps) + alone(x, 1, steps)) / 2
