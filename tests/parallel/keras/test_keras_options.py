"""Options of `compile` and `fit`, and kinds of models, on several workers."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import on_ranks
from support.training import models
from support.training.models import classifier, examples, identical, train_like_one_process


@pytest.mark.parametrize(
    "options",
    [{"steps_per_execution": 4}, {"run_eagerly": True}],
    ids=["steps_per_execution", "run_eagerly"],
)
@on_ranks(2, check=identical)
def test_compile_options(ctx, options):
    model = train_like_one_process(
        ctx,
        lambda: classifier(keras.optimizers.SGD(0.1), **options),
        lambda model: model.fit(
            models.dataset(64 * 10, 64), validation_data=models.dataset(100, 50), verbose=0
        ),
    )
    assert model.optimizer.iterations.numpy() == 10  # not a multiple of steps_per_execution
    predicted = model.predict(models.dataset(101, 16), verbose=0)
    assert predicted.shape == (101, models.CLASSES)
    return [*model.get_weights(), predicted]


class _RowCounter(keras.metrics.Metric):
    """Counts rows in an integer variable."""

    def __init__(self):
        super().__init__(name="rows", dtype="int64")
        self.rows = self.add_variable((), initializer="zeros", dtype="int64", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.rows.assign_add(tf.shape(y_true, out_type=tf.int64)[0])

    def result(self):
        return tf.identity(self.rows.value)


@on_ranks(2, check=identical)
def test_integer_metric_counts_the_rows_of_all_workers(ctx):
    model = train_like_one_process(
        ctx,
        lambda: classifier(keras.optimizers.SGD(0.1), metrics=[_RowCounter()]),
        lambda model: model.fit(models.dataset(64 * 3, 64), epochs=2, verbose=0),
    )
    evaluated = model.evaluate(models.dataset(101, 16), verbose=0, return_dict=True)
    assert evaluated["rows"] == 101
    return [*model.get_weights(), *evaluated.values()]


@on_ranks(2, check=identical)
def test_float64_model(ctx):
    keras.config.set_floatx("float64")
    features, labels = examples(64 * 5, "float64")
    model = train_like_one_process(
        ctx,
        lambda: classifier(keras.optimizers.SGD(0.1, momentum=0.9)),
        lambda model: model.fit(features, labels, batch_size=64, shuffle=False, verbose=0),
        tolerance=1e-14,
    )
    assert {w.dtype for w in model.get_weights()} == {np.dtype("float64")}
    return model.get_weights()


@on_ranks(2, check=identical)
def test_dropout(ctx):
    with tfdist.MultiWorkerMirroredStrategy().scope():
        keras.utils.set_random_seed(ctx.rank)
        model = classifier(keras.optimizers.SGD(0.1), middle=[keras.layers.Dropout(0.5)])
    losses = model.fit(models.dataset(64 * 5, 64), epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    (seed,) = model.non_trainable_variables
    weights = model.get_weights()
    # Inference drops nothing.
    first, second = (model.predict(examples(8)[0], verbose=0) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    return [*weights, seed.numpy(), first]


class Custom(keras.Model):
    """Has a training step of its own, a loss from a layer, and a state that grows by one a step."""

    def __init__(self, activity):
        super().__init__()
        self.inner = keras.layers.Dense(8, activation="tanh", activity_regularizer=activity)
        self.outer = keras.layers.Dense(models.CLASSES, kernel_regularizer="l2")
        self.seen = self.add_weight((), "zeros", dtype="int32", trainable=False, name="seen")

    def call(self, inputs):
        return self.outer(self.inner(inputs))

    def train_step(self, data):
        features, labels = data
        with tf.GradientTape() as tape:
            outputs = self(features, training=True)
            loss = self.compute_loss(y=labels, y_pred=outputs)
        self.seen.assign_add(1)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return self.compute_metrics(features, labels, outputs)


def _activity_losses_are_means() -> bool:
    """Older releases of Keras add them up over a batch's rows: half a batch then has half of it."""
    layer = keras.layers.Dense(1, kernel_initializer="ones", activity_regularizer="l2")
    layer(tf.ones([4, 1]))
    return bool(layer.losses[0] < 0.02)


def _custom_model(activity):
    model = Custom(activity)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])
    return model


@on_ranks(2, check=identical)
def test_custom_train_step_and_regularizers(ctx):
    activity = "l2" if _activity_losses_are_means() else None
    model = train_like_one_process(
        ctx,
        lambda: _custom_model(activity),
        lambda model: model.fit(models.dataset(64 * 5, 64), epochs=2, verbose=0),
    )
    assert model.seen.numpy() == 10
    return model.get_weights()
