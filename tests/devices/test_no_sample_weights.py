"""Data whose sample weights, or labels, are `None`, as without a strategy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("tf_keras")
import keras
import tf_keras

# Both strategies share the code.
pytestmark = pytest.mark.long("central-*", covered_by="the other cases")

X = np.linspace(-1, 1, 27, dtype="float32").reshape(9, 3)
Y = X.sum(axis=1, keepdims=True)


def dataset(*fixed):
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(4).map(lambda x, y: (x, *fixed))


def weightless():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(4).map(lambda x, y: (x, y, None))


def yielded():
    for start in range(0, len(X), 4):
        yield X[start : start + 4], Y[start : start + 4], None


CALLS = {
    "fit": lambda model: model.fit(weightless(), verbose=0).history["loss"],
    "fit twice": lambda model: model.fit(weightless(), epochs=2, verbose=0).history["loss"],
    "validation": lambda model: model.fit(
        X, Y, shuffle=False, validation_data=weightless(), verbose=0
    ).history["val_loss"],
    "evaluate": lambda model: model.evaluate(weightless(), verbose=0),
    "predict": lambda model: model.predict(dataset(None), verbose=0),
    "predict, three": lambda model: model.predict(dataset(None, None), verbose=0),
    "generator": lambda model: model.fit(yielded(), steps_per_epoch=2, verbose=0).history["loss"],
    "evaluate generator": lambda model: model.evaluate(yielded(), steps=2, verbose=0),
    "on a batch": lambda model: model.train_on_batch(X, Y, None),
}


def model_of(library):
    library.utils.set_random_seed(0)
    model = library.Sequential([library.Input((3,)), library.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


@pytest.mark.long(
    "*generator-tf_keras",
    "*fit twice-tf_keras",
    "*-validation-tf_keras",
    covered_by="the other cases",
)
@pytest.mark.parametrize("library", [keras, tf_keras], ids=["keras", "tf_keras"])
@pytest.mark.parametrize("call", CALLS)
def test_as_without_a_strategy(strategy, library, call):
    expected = model_of(library)
    result = CALLS[call](expected)
    with strategy.scope():
        model = model_of(library)
    np.testing.assert_allclose(CALLS[call](model), result, rtol=1e-5)
    for received, weights in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(received, weights, rtol=1e-5, atol=1e-6)
