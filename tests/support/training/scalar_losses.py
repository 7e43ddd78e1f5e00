"""Losses that return one number for a batch, and sums over the rows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

BATCH, ROWS = 7, 17


def _squares(y_true: Any, y_pred: Any) -> tf.Tensor:
    return tf.reduce_mean(tf.square(y_true - y_pred), axis=-1)


def mean(y_true: Any, y_pred: Any) -> tf.Tensor:
    """The mean over the rows."""
    return tf.reduce_mean(_squares(y_true, y_pred))


def add(y_true: Any, y_pred: Any) -> tf.Tensor:
    """The sum over the rows."""
    return tf.reduce_sum(_squares(y_true, y_pred))


def add_by_batch(y_true: Any, y_pred: Any) -> tf.Tensor:
    """The sum over the rows, divided by the rows of a whole batch."""
    return tf.reduce_sum(_squares(y_true, y_pred)) / BATCH


def average(y_true: Any, y_pred: Any) -> tf.Tensor:
    """The same, as TensorFlow's guide writes it."""
    return tf.nn.compute_average_loss(_squares(y_true, y_pred), global_batch_size=BATCH)


LOSSES: dict[str, Callable[[Any], Any]] = {
    "mean": lambda library: mean,
    "sum": lambda library: add,
    "sum by batch": lambda library: add_by_batch,
    "average": lambda library: average,
    "reduction of a sum": lambda library: library.losses.MeanSquaredError(reduction="sum"),
}


def data() -> tuple[np.ndarray, np.ndarray]:
    """Rows, and what a linear model learns of them."""
    x = np.random.default_rng(0).normal(size=(ROWS, 3)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def trained(
    library: Any, name: str, strategy: Any, started: Callable[[], None] = lambda: None
) -> tuple[list[np.ndarray], list[float]]:
    """Trains a model for an epoch.

    Args:
      library: keras or tf_keras.
      name: of the loss.
      strategy: `None`: without one.
      started: is called when the model has its first values, and has been evaluated.

    Returns:
      The weights after it; the losses of `evaluate` before, of `fit`, and of its validation.
    """
    library.utils.set_random_seed(1)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        layers = [library.layers.Input((3,)), library.layers.Dense(1)]
        model = library.Sequential(layers)
        model.compile(library.optimizers.SGD(0.01), LOSSES[name](library))
    x, y = data()
    options = {"batch_size": BATCH, "verbose": 0}
    before = model.evaluate(x, y, **options)
    started()
    logs = model.fit(x, y, shuffle=False, validation_data=(x, y), **options).history
    return model.get_weights(), [before, *logs["loss"], *logs["val_loss"]]
