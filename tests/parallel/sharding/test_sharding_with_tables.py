"""`Sharding` of the dense part of a model with embedding tables, on servers or on the workers."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import tfdist
from support.processes.ranks import on_ranks
from support.ps_job import meet, on_job, served
from support.training.models import ADAPTIVE, difference


def trained(strategy, **options):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        ids = keras.Input((4,), dtype="int64")
        rows = tfdist.layers.Embedding(None, 5, optimizer="adagrad", initializer="ones")
        hidden = keras.layers.Dense(3, activation="tanh")(keras.layers.Flatten()(rows(ids)))
        model = keras.Model(ids, keras.layers.Dense(1)(hidden))
        model.compile(keras.optimizers.Adam(0.01, **options), "mse")
    numbers = np.random.default_rng(0).integers(0, 9, [64, 4])
    model.fit(
        numbers,
        numbers.sum(axis=1, keepdims=True),
        batch_size=16,
        shuffle=False,
        verbose=0,
    )
    dense = [w for w in model.get_weights() if w.size]
    return [*dense, model.predict(numbers, verbose=0, batch_size=16)]


@on_job(2, 1)
def test_tables_and_parts(ctx):
    if served():
        return
    sharded = tfdist.Sharding()
    copies = trained(tfdist.MultiWorkerMirroredStrategy())
    parts = trained(tfdist.MultiWorkerMirroredStrategy(sharding=sharded))
    assert difference(parts, copies) <= ADAPTIVE
    with pytest.raises(ValueError, match="expected no clipping"):
        trained(tfdist.MultiWorkerMirroredStrategy(sharding=sharded), clipnorm=1.0)
    meet(ctx, "end")


@pytest.mark.long(covered_by="test_tables_and_parts")
@on_ranks(2)
def test_tables_on_workers_and_parts(ctx):
    copies = trained(tfdist.MultiWorkerMirroredStrategy())
    for stage in (1, 3):
        sharding = tfdist.Sharding(stage=stage)
        parts = trained(tfdist.MultiWorkerMirroredStrategy(sharding=sharding))
        assert difference(parts, copies) <= ADAPTIVE
