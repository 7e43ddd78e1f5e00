"""Keras's warning that it does not shuffle comes only if the caller has asked for it."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist

X = np.ones((8, 2), "float32")


def generated():
    for _ in range(2):
        yield X, X[:, :1]


DATA = {
    "dataset": lambda: tf.data.Dataset.from_tensor_slices((X, X[:, :1])).batch(4),
    "generator": generated,
}


def warned(data, **options) -> bool:
    with tfdist.MirroredStrategy(["/cpu:0"]).scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model.fit(data, steps_per_epoch=2, verbose=0, **options)
    return any("shuffle=True" in str(each.message) for each in found)


@pytest.mark.parametrize("kind", DATA)
def test_the_default_is_no_wish(kind):
    assert not warned(DATA[kind]())


def test_arrays_are_still_shuffled():
    """They are no data whose order Keras leaves alone."""
    orders = []

    class Model(keras.Model):
        def train_step(self, data):
            orders.append(data[0].numpy()[:, 0].tolist())
            return {"loss": tf.constant(0.0)}

    with tfdist.MirroredStrategy(["/cpu:0"]).scope():
        model = Model()
        model.compile("sgd", "mse", run_eagerly=True)
    model.fit(np.arange(64.0)[:, None], np.zeros(64), batch_size=64, verbose=0)
    assert orders[0] != sorted(orders[0])
