"""Keras models that begin with a remote embedding: made without an Input, and loaded elsewhere."""

from __future__ import annotations

import os
import sys

import keras
import numpy as np
import pytest

import tfdist
from support.processes.ranks import on_ranks

IDS = np.array([[1, 2, 3], [2**53 + 1, 5, -6]])


@on_ranks(2)
def test_load_model_in_a_process_that_has_not_imported_the_layer(ctx):
    del os.environ["TF_CONFIG"]
    path = ctx.tmp_path / "model.keras"
    if ctx.rank == 1:
        ctx.barrier("saved")
        assert not {"tfdist.layers", "tfdist.embedding.layer"} & sys.modules.keys()
        with tfdist.ParameterServerStrategy().scope():
            model = keras.models.load_model(path)
        assert model.layers[0].output_dim == 4
        expected = np.load(ctx.tmp_path / "expected.npy")
        np.testing.assert_array_equal(model.predict(IDS, verbose=0), expected)
        return
    with tfdist.ParameterServerStrategy().scope():
        model = keras.Sequential(
            [
                keras.Input((3,), dtype="int64"),
                tfdist.layers.Embedding(output_dim=4),
                keras.layers.Dense(1),
            ]
        )
    model.compile("sgd", "mse")
    model.fit(IDS, np.ones([2, 1]), verbose=0)
    np.save(ctx.tmp_path / "expected.npy", model.predict(IDS, verbose=0))
    model.save(path)
    ctx.barrier("saved")


@on_ranks(1)
def test_a_sequential_that_begins_with_an_embedding(ctx):
    del os.environ["TF_CONFIG"]
    strategy = tfdist.ParameterServerStrategy()
    with strategy.scope():
        model = keras.Sequential(
            [
                tfdist.layers.Embedding(output_dim=4, combiner="sum", name="rows"),
                keras.layers.Dense(1),
            ]
        )
        model.compile("sgd", "mse")
    model.fit(IDS, np.ones([2, 1]), verbose=0)
    # Were they float32 on their way, two ids would be one.
    rows = {id: model.layers[0](np.array([[id]])).numpy() for id in (2**53, 2**53 + 1)}
    assert not np.array_equal(*rows.values())
    path = ctx.tmp_path / "model.keras"
    model.save(path)
    with strategy.scope():
        loaded = keras.models.load_model(path)
    np.testing.assert_array_equal(loaded.predict(IDS, verbose=0), model.predict(IDS, verbose=0))
    with pytest.raises(TypeError, match="expected integers or strings, received float32"):
        model.layers[0](keras.Input((3,)))
