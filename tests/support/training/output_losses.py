"""A model with several outputs, whose losses `evaluate` logs."""

from __future__ import annotations

import contextlib

import keras
import numpy as np

LOSSES = {"of each output": {"a": "mse", "b": "mae"}, "one for all": "mse"}


def logs(strategy, losses):
    """Returns the logs of a batch of 7 rows and one of 2."""
    keras.utils.set_random_seed(1)
    inputs = np.random.default_rng(0).normal(size=(9, 4))
    with strategy.scope() if strategy else contextlib.nullcontext():
        rows = keras.Input((4,))
        outputs = {name: keras.layers.Dense(1, name=name)(rows) for name in ("a", "b")}
        model = keras.Model(rows, outputs)
        model.compile("sgd", LOSSES[losses])
    targets = {"a": inputs[:, :1], "b": inputs[:, 1:2]}
    return model.evaluate(inputs, targets, batch_size=7, verbose=0, return_dict=True)
