"""Model_fns for the tests of Estimator, made of layers of `tf.keras`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from support.estimator.estimator_data import ROWS, input_fn, labels, predictions
from tfdist import estimator

v1 = tf.compat.v1
layers = tf.keras.layers


def gradient_descent(loss: tf.Tensor, model: Any = None) -> tf.Operation:
    """Makes a train_op that moves all trainable variables at the rate 0.1."""
    return v1.train.GradientDescentOptimizer(0.1).minimize(loss, v1.train.get_global_step())


def make_estimator(
    build: Callable, model_dir: Any, train: Callable = gradient_descent, metrics: Any = None
) -> estimator.Estimator:
    """Makes an `Estimator` of the "column" label.

    Args:
      build: given the feature "x" and whether it is for training, returns a model and its logits.
      model_dir: a directory.
      train: given the loss and the model, makes the train_op.
      metrics: given labels and logits, makes eval_metric_ops.
    """

    def model_fn(features, labels, mode):
        model, logits = build(features["x"], mode == estimator.ModeKeys.TRAIN)
        if mode == estimator.ModeKeys.PREDICT:
            return estimator.EstimatorSpec(mode, predictions={"logits": logits})
        loss = v1.losses.sigmoid_cross_entropy(labels, logits)
        return estimator.EstimatorSpec(
            mode,
            loss=loss,
            train_op=train(loss, model) if mode == estimator.ModeKeys.TRAIN else None,
            eval_metric_ops=metrics(labels, logits) if metrics and mode == "eval" else None,
        )

    return estimator.Estimator(model_fn, model_dir=str(model_dir))


def train_evaluate_predict(made: Any, steps: int = 3) -> dict[str, Any]:
    """Trains, evaluates and predicts with all rows at once; returns the evaluation's result."""
    whole = input_fn("column", batch=ROWS)
    made.train(whole, steps=steps)
    evaluated = made.evaluate(whole, steps=1)
    assert evaluated["global_step"] == steps
    assert predictions(made, "logits").shape == (ROWS, 1)
    return evaluated


def sequential(*middle: Callable) -> Callable:
    """Two dense layers for `make_estimator`, with the layers of `middle` between them."""

    def build(x, training):
        model = tf.keras.Sequential([layers.Dense(4), *(m() for m in middle), layers.Dense(1)])
        return model, model(x, training=training)

    return build


def head_model_fn(make_optimizer: Callable) -> Callable:
    """Makes a model_fn of a dense layer that starts from zero, and a head."""

    def model_fn(features, labels, mode):
        model = tf.keras.Sequential([layers.Dense(1, kernel_initializer="zeros")])
        return estimator.BinaryClassHead().create_estimator_spec(
            features,
            mode,
            model(features["x"]),
            labels=labels,
            optimizer=make_optimizer() if mode == estimator.ModeKeys.TRAIN else None,
            trainable_variables=model.trainable_variables,
            update_ops=model.updates,
        )

    return model_fn


def assert_one_step(bias: np.ndarray) -> None:
    """Its bias has made one step at the rate 0.1, with all rows."""
    np.testing.assert_allclose(bias, [0.1 * (labels()["two"].mean() - 0.5)], rtol=1e-5)
