"""Models without values."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import tfdist
import tfdist.keras
from support.training.models import difference, examples


def model_of(width: int) -> keras.Model:
    inputs = keras.Input((width,))
    hidden = keras.layers.Dense(width)(inputs)
    hidden = keras.layers.BatchNormalization()(keras.layers.Dropout(0.1)(hidden))
    return keras.Model(inputs, keras.layers.Dense(3)(hidden))


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_a_large_model_needs_no_memory(capsys):
    before = resident()
    with tfdist.keras.deferred():
        model = model_of(50_000)  # 10 GB
    model.summary()
    assert model.count_params() == 50_000 * 50_001 + 4 * 50_000 + 3 * 50_001
    assert "2,500" in capsys.readouterr().out
    assert resident() - before < 50 << 20
    # A scope that ends does not initialize it.
    with keras.StatelessScope():
        pass
    assert model.layers[1].kernel._value is None


def test_values_are_those_of_an_ordinary_model():
    keras.utils.set_random_seed(3)
    expected = model_of(6).get_weights()
    keras.utils.set_random_seed(3)
    with tfdist.keras.deferred():
        model = model_of(6)
    tfdist.keras.initialize(model)
    assert difference(model.get_weights(), expected) == 0
    weights = [np.ones_like(weight) for weight in expected]
    model.set_weights(weights)
    tfdist.keras.initialize(model)  # keeps them
    assert difference(model.get_weights(), weights) == 0


@pytest.mark.long(covered_by="test_values_are_those_of_an_ordinary_model")
def test_fit_initializes():
    features, labels = examples(32)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def trained(scope):
        keras.utils.set_random_seed(3)
        strategy = tfdist.MultiWorkerMirroredStrategy()
        with strategy.scope():
            with scope():
                model = model_of(6)
            model.compile("sgd", loss)
        model.fit(features, labels, epochs=2, shuffle=False, verbose=0)
        return model.get_weights()

    import contextlib

    assert difference(trained(tfdist.keras.deferred), trained(contextlib.nullcontext)) == 0


def test_scopes_do_not_nest():
    with keras.StatelessScope(), pytest.raises(RuntimeError, match="no other"):
        with tfdist.keras.deferred():
            pass


class Layout:
    """Stands for a `keras.distribution.ModelParallel`, which Keras 3.8 cannot make."""


def test_a_keras_distribution_beside_a_strategy_is_refused():
    strategy = tfdist.MultiWorkerMirroredStrategy()
    keras.distribution.set_distribution(Layout())
    try:
        with pytest.raises(ValueError, match="Layout is set: with TensorFlow"):
            strategy.scope()
    finally:
        keras.distribution.set_distribution(None)
    strategy.scope()
