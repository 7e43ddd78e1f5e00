"""A model with several outputs, whose losses `evaluate` logs."""

from __future__ import annotations

import contextlib

import keras
import numpy as np

LOSSES = {"of each output": {"a": "mse", "b": "mae"}, "one for all": "mse"}
_BATCH = 7


def logs(strategy, losses, rows=slice(None)):
    """Returns the logs of a batch of 7 rows and a batch of 2, or of the given rows only."""
    return _evaluate(_model(strategy, losses), rows)


def expected(losses):
    """Returns what one process logs; the loss of an output is a mean over batches."""
    model = _model(None, losses)
    logged = _evaluate(model)
    batches = [_evaluate(model, slice(_BATCH)), _evaluate(model, slice(_BATCH, None))]
    means = {name: np.mean([batch[name] for batch in batches]) for name in logged if name != "loss"}
    # Keras 3.16 counts the first batch as 7 rows and the second, whose rows no graph knows, as one.
    if tuple(map(int, keras.__version__.split(".")[:2])) < (3, 16):
        np.testing.assert_allclose([*means.values()], [logged[name] for name in means], rtol=1e-5)
    return {**means, "loss": logged["loss"]}


def _model(strategy, losses):
    keras.utils.set_random_seed(1)
    with strategy.scope() if strategy else contextlib.nullcontext():
        rows = keras.Input((4,))
        outputs = {name: keras.layers.Dense(1, name=name)(rows) for name in ("a", "b")}
        model = keras.Model(rows, outputs)
        model.compile("sgd", LOSSES[losses])
    return model


def _evaluate(model, rows=slice(None)):
    inputs = np.random.default_rng(0).normal(size=(9, 4))[rows]
    targets = {"a": inputs[:, :1], "b": inputs[:, 1:2]}
    return model.evaluate(inputs, targets, batch_size=_BATCH, verbose=0, return_dict=True)
