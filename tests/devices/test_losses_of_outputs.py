"""`evaluate` logs the loss of each output as one process does, with uneven batches."""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import pytest
from replicas import make_strategy


def _logs(strategy):
    keras.utils.set_random_seed(1)
    inputs = np.random.default_rng(0).normal(size=(9, 4))
    with strategy.scope() if strategy else contextlib.nullcontext():
        rows = keras.Input((4,))
        outputs = {name: keras.layers.Dense(1, name=name)(rows) for name in ("a", "b")}
        model = keras.Model(rows, outputs)
        model.compile("sgd", {"a": "mse", "b": "mae"})
    targets = {"a": inputs[:, :1], "b": inputs[:, 1:2]}
    return model.evaluate(inputs, targets, batch_size=7, verbose=0, return_dict=True)


@pytest.mark.parametrize("kind", ["central", "mirrored"])
def test_losses_of_outputs(kind):
    assert _logs(make_strategy(kind, 2)) == pytest.approx(_logs(None), rel=1e-5)
