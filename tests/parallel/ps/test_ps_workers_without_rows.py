"""In "sync" a worker without rows computes on a substitute row, which reaches no sum."""

from __future__ import annotations

import functools

import keras
import numpy as np
import tensorflow as tf

import tfdist
from support.ps_job import meet, on_job, served
from support.tiers import LONG, chosen
from support.training import parity_models
from support.training.layer_cases import CASES
from support.training.models import identical

LAYERS = chosen(CASES, "DepthwiseConv2D")


def _like_alone(results):
    results = [result for result in results if result is not None]
    for name, case in LAYERS.items():
        of_workers = [result[name] for result in results]
        identical([[*one.weights, *one.slots, *one.history.values()] for one in of_workers])
        parity_models.assert_like_alone("ParameterServerStrategy", name, case, of_workers[0])


@on_job(2, timeout=900.0 if LONG else 150.0, check=_like_alone)
def test_layers(ctx):
    if served():
        return None
    strategy = tfdist.ParameterServerStrategy(mode="sync")
    return {
        name: parity_models.train(case, strategy, functools.partial(meet, ctx, name))
        for name, case in LAYERS.items()
    }


@on_job(2)
def test_tables(ctx):
    """A substitute row makes no row of a table."""
    if served():
        return
    strategy = tfdist.ParameterServerStrategy(mode="sync")
    ids = np.arange(100, 117)[:, np.newaxis]
    with strategy.scope():
        table = tfdist.layers.Embedding(None, 4, optimizer=tfdist.embedding.SGD(learning_rate=0.1))
        inputs = keras.Input((1,), dtype="int64")
        hidden = keras.layers.Flatten()(table(inputs))
        model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
        model.compile("sgd", "mse")
    meet(ctx, "made")
    data = tf.data.Dataset.from_tensor_slices((ids, ids / 100.0)).batch(8)
    logs = model.fit(data, verbose=0).history
    assert np.isfinite(logs["loss"]).all()
    meet(ctx, "trained")
    assert sorted(table.table.columns()["ids"].tolist()) == ids[:, 0].tolist()
