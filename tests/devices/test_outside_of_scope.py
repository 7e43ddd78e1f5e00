"""Calls outside of `strategy.scope()` train as within it, or are refused by name."""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import pytest

from devices.replicas import make_strategy
from support.training import scope_cases
from support.training.models import ADAPTIVE, difference
from tfdist.keras.repairs import scopes


@pytest.mark.long("central-*", covered_by="the other cases")
@pytest.mark.parametrize("case", scope_cases.TRAINED)
@pytest.mark.parametrize("kind", ["mirrored", "central"])
def test_trained(kind, case):
    found = scope_cases.trained(case, make_strategy(kind, 2).scope)
    expected = scope_cases.trained(case, contextlib.nullcontext)
    assert difference(found, expected) <= ADAPTIVE


@pytest.mark.long("own optimizers outside", covered_by="the other cases")
@pytest.mark.parametrize("case", ["optimizer outside", "own optimizers outside"])
def test_trained_by_one_replica(case):
    found = scope_cases.trained(case, make_strategy("mirrored", 1).scope)
    expected = scope_cases.trained(case, contextlib.nullcontext)
    assert difference(found, expected) <= ADAPTIVE


@pytest.mark.parametrize("case", scope_cases.REFUSED)
@pytest.mark.parametrize("kind", ["mirrored", "central"])
def test_refused(kind, case):
    with pytest.raises(ValueError, match=scope_cases.REFUSED[case][1]):
        scope_cases.refused(case, make_strategy(kind, 2).scope)


def test_a_head_that_tf_keras_makes_outside_is_refused():
    with pytest.raises(ValueError, match=scope_cases.REFUSED["head outside"][1]):
        scope_cases.refused("head outside", make_strategy("mirrored", 2).scope, "tf_keras")


@pytest.mark.parametrize("kind", ["mirrored", "central"])
@pytest.mark.parametrize("data", ["rows", "batches of a dictionary"])
def test_predict_of_a_model_without_variables(kind, data):
    keras.utils.set_random_seed(3)
    strategy = make_strategy(kind, 2)
    with strategy.scope():
        model = scope_cases.lazy(keras)
        if data != "rows":
            columns = {"a": keras.Input((scope_cases.COLUMNS,), name="a")}
            model = keras.Model(columns, model(columns["a"]))
    rows, _ = scope_cases.rows()
    x = rows if data == "rows" else {"a": rows}
    found = model.predict(x, batch_size=scope_cases.BATCH, verbose=0)
    expected = model(x, training=False)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(model.predict_on_batch(x), expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["mirrored", "central"])
def test_predict_of_a_model_that_cannot_be_called_with_shapes(kind, monkeypatch):
    """Mirrored replicas make its variables in their first step; central storage cannot."""

    def fail(*args, **kwargs):
        raise ValueError("no result for shapes")

    monkeypatch.setattr(scopes, "compute_output_spec", fail)
    with make_strategy(kind, 2).scope():
        model = scope_cases.lazy(keras)
    x, _ = scope_cases.rows()
    if kind == "mirrored":
        assert model.predict(x, verbose=0).shape == (len(x), 1)
    else:
        with pytest.raises(ValueError, match="no result for shapes(?s:.*)as a Python `bool`"):
            model.predict(x, verbose=0)


def test_features_of_a_trained_model_are_read_outside_of_its_scope():
    """A model of its layers, made outside, that only predicts."""
    keras.utils.set_random_seed(3)
    with make_strategy("mirrored", 2).scope():
        model = scope_cases.built(keras)
        model.compile("sgd", "mse")
    x, y = scope_cases.rows()
    model.fit(x, y, verbose=0)
    features = keras.Model(model.inputs[0], model.layers[0].output).predict(x, verbose=0)
    kernel, bias = model.layers[0].get_weights()
    np.testing.assert_allclose(features, np.tanh(x @ kernel + bias), atol=1e-6)
