"""Models of many kinds for batches that do not divide evenly, as `parity_models.Case`.

A batch has 7 rows: 4 and 3 for two replicas, 3, 3 and 1 for three. The last batch has one row, and
all replicas but one have none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from support.training.models import ADAPTIVE, EXACT
from support.training.parity_models import (
    CLASSES,
    COLUMNS,
    TIMES,
    Case,
    classifier_of,
    sequences,
    weighted_outputs,
    weighted_rows,
)

BATCH, ROWS, WORDS = 7, 29, 9
layers = keras.layers
Losses = keras.losses.SparseCategoricalCrossentropy


def _first(arrays: tuple) -> tuple:
    """The first rows of nested arrays."""
    return tf.nest.map_structure(lambda array: array[:ROWS], arrays)


def _lengths() -> np.ndarray:
    """How many steps of a row are not masked: from none to all."""
    return np.append(np.random.default_rng(5).integers(0, TIMES + 1, ROWS - 1), TIMES - 1)


def sentences() -> tuple[np.ndarray, np.ndarray]:
    """Makes words int32[rows, TIMES], which end with zeros, and a label of each word."""
    random = np.random.default_rng(6)
    words = random.integers(1, WORDS, (ROWS, TIMES)).astype("int32")
    words[np.arange(TIMES) >= _lengths()[:, np.newaxis]] = 0
    return words, words % CLASSES


def _weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(8).uniform(0.0, 3.0, (ROWS, *shape)).astype("float32")


def weighted_sentences() -> tuple:
    """Makes `sentences`, and a weight for each word."""
    return *sentences(), _weights(TIMES)


def padded() -> tuple:
    """Makes rows of numbers that end with zeros, a label and a weight of each step."""
    x, _ = _first(sequences())
    x[np.arange(TIMES) >= _lengths()[:, np.newaxis]] = 0.0
    return x, (np.abs(x).sum(axis=2) * 3).astype("int32") % CLASSES, _weights(TIMES)


def tagger(reduction: str = "sum_over_batch_size") -> keras.Model:
    """Makes a compiled model that labels each word; padding is masked."""
    inputs = keras.Input((TIMES,), dtype="int32")
    hidden = layers.Embedding(WORDS, 8, mask_zero=True)(inputs)
    outputs = layers.Dense(CLASSES)(layers.LSTM(8, return_sequences=True)(hidden))
    model = keras.Model(inputs, outputs)
    # Not Adam: without a strategy Keras does not add the gradients of a word that occurs twice.
    optimizer = keras.optimizers.SGD(0.5, momentum=0.9)
    model.compile(optimizer, Losses(from_logits=True, reduction=reduction))
    return model


def masked_steps(reduction: str) -> keras.Model:
    """Makes a compiled model that labels each step of a masked sequence."""
    inputs = keras.Input((TIMES, COLUMNS))
    hidden = layers.GRU(8, return_sequences=True)(layers.Masking()(inputs))
    model = keras.Model(inputs, layers.Dense(CLASSES)(hidden))
    model.compile(keras.optimizers.Adam(0.01), Losses(from_logits=True, reduction=reduction))
    return model


def dense(optimizer: Any, loss: Any = None, **compiled: Any) -> keras.Model:
    """Makes a compiled classifier of `sequences`."""
    inputs = keras.Input((TIMES, COLUMNS))
    hidden = layers.Dense(12, activation="tanh")(layers.Flatten()(inputs))
    model = keras.Model(inputs, layers.Dense(CLASSES)(hidden))
    compiled = {"metrics": ["accuracy"], **compiled}
    model.compile(optimizer, loss or Losses(from_logits=True), **compiled)
    return model


class Penalty(layers.Layer):
    """Adds a loss of its inputs, which is NaN in a replica without rows."""

    def call(self, inputs):
        self.add_loss(0.1 * tf.reduce_mean(tf.square(inputs)))
        return inputs


def regularized() -> keras.Model:
    """Makes a compiled classifier with losses of its variables and of its rows."""
    inputs = keras.Input((TIMES, COLUMNS))
    hidden = layers.Dense(12, activation="tanh", kernel_regularizer=keras.regularizers.L2(0.01))(
        layers.Flatten()(inputs)
    )
    model = keras.Model(inputs, layers.Dense(CLASSES)(Penalty()(hidden)))
    model.compile(keras.optimizers.Adam(0.01), Losses(from_logits=True))
    return model


def mean_of_rows(y_true: Any, y_pred: Any) -> tf.Tensor:
    """One number for a batch."""
    return tf.reduce_mean(_of_rows(y_true, y_pred))


def sum_by_batch(y_true: Any, y_pred: Any) -> tf.Tensor:
    """One number for a batch, as losses are written for replicas."""
    return tf.reduce_sum(_of_rows(y_true, y_pred)) / BATCH


def average_loss(y_true: Any, y_pred: Any) -> tf.Tensor:
    """One number for a batch, as TensorFlow's guide writes it."""
    return tf.nn.compute_average_loss(_of_rows(y_true, y_pred), global_batch_size=BATCH)


class MeanOfRows(keras.losses.Loss):
    """Returns one number for a batch, where Keras expects one for each row."""

    def call(self, y_true: Any, y_pred: Any) -> tf.Tensor:
        return keras.ops.mean(_of_rows(y_true, y_pred))


def _of_rows(y_true: Any, y_pred: Any) -> tf.Tensor:
    return keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)


class OwnStep(keras.Model):
    """Has a `train_step` of its own, which calls `compute_loss`."""

    def train_step(self, data: Any) -> dict[str, Any]:
        """One step, as Keras's guide writes it."""
        x, y = data
        with tf.GradientTape() as tape:
            outputs = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=outputs)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, [v.value for v in variables]), variables)
        return self.compute_metrics(x, y, outputs)


def own_step(decorate: Callable = lambda step: step) -> keras.Model:
    """Makes a compiled `OwnStep`; `decorate` decorates its `train_step`."""
    inputs = keras.Input((TIMES, COLUMNS))
    hidden = layers.Dense(12, activation="tanh")(layers.Flatten()(inputs))
    kind = type("OwnStep", (OwnStep,), {"train_step": decorate(OwnStep.train_step)})
    model = kind(inputs, layers.Dense(CLASSES)(hidden))
    model.compile(keras.optimizers.SGD(0.2), Losses(from_logits=True), metrics=["accuracy"])
    return model


def _adam() -> keras.optimizers.Optimizer:
    return keras.optimizers.Adam(0.01)


def _case(build: Callable, data: Callable = lambda: _first(sequences()), **options: Any) -> Case:
    adaptive = options.pop("adaptive", True)
    return Case(build, data, ADAPTIVE if adaptive else EXACT, options, BATCH)


# The rows of a batch differ between replicas in all of them.
CASES = {
    "rows, SGD": _case(lambda: dense(keras.optimizers.SGD(0.2)), adaptive=False),
    "rows, Adam": _case(lambda: dense(_adam())),
    "mask": _case(tagger, sentences, adaptive=False),
    "mask and sample weights": _case(tagger, weighted_sentences, adaptive=False),
    "mean with sample weight": _case(
        lambda: dense(_adam(), Losses(from_logits=True, reduction="mean_with_sample_weight")),
        lambda: (*_first(sequences()), _weights()),
    ),
    "mask, mean with sample weight": _case(lambda: masked_steps("mean_with_sample_weight"), padded),
    "sum": _case(
        lambda: dense(keras.optimizers.SGD(0.02), Losses(from_logits=True, reduction="sum")),
        adaptive=False,
    ),
    "a scalar": _case(lambda: dense(_adam(), mean_of_rows)),
    "a scalar of a class": _case(lambda: dense(_adam(), MeanOfRows(reduction="none"))),
    "a scalar sum by the batch": _case(lambda: dense(_adam(), sum_by_batch)),
    "a scalar of compute_average_loss": _case(lambda: dense(_adam(), average_loss)),
    "a scalar of one of two outputs": _case(
        lambda: weighted_outputs(mean_of_rows), lambda: _first(weighted_rows()[:2])
    ),
    "class weights": _case(
        lambda: classifier_of(layers.Flatten(), _adam()), class_weight={0: 0.5, 1: 1.0, 2: 2.0}
    ),
    "two outputs": _case(weighted_outputs, lambda: _first(weighted_rows())),
    "regularizers and add_loss": _case(regularized),
    "a train_step": _case(own_step, adaptive=False),
}
# How a step is run; on devices only, where a run is cheap.
WAYS = {
    "eagerly": _case(lambda: dense(_adam(), run_eagerly=True)),
    "mask, eagerly": _case(
        lambda: _recompiled(masked_steps("sum_over_batch_size"), run_eagerly=True), padded
    ),
    "several steps": _case(lambda: dense(_adam(), steps_per_execution=2)),
    "accumulated": _case(lambda: dense(keras.optimizers.Adam(0.01, gradient_accumulation_steps=2))),
    "clipped": _case(lambda: dense(keras.optimizers.Adam(0.01, global_clipnorm=0.1))),
    "scaled": _case(
        lambda: dense(keras.optimizers.LossScaleOptimizer(_adam(), initial_scale=1024.0))
    ),
    "a compiled train_step": _case(lambda: own_step(tf.function), adaptive=False),
}


def _recompiled(model: keras.Model, **options: Any) -> keras.Model:
    model.compile(model.optimizer, model.loss, **options)
    return model
