"""An Estimator on several devices equals one without a strategy and with the global batch."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from devices.replicas import make_strategy
from support.estimator.estimator_data import ROWS, ignore_warnings, input_fn, values
from support.estimator.estimator_models import head_model_fn, make_estimator, sequential
from support.training.models import ADAPTIVE, EXACT
from tfdist import estimator

pytestmark = ignore_warnings
v1 = tf.compat.v1
STEPS, BATCH = 50, 16
OPTIMIZERS = {"sgd": ("SGD", EXACT), "adam": ("Adam", ADAPTIVE)}
KINDS = {
    "mirrored": lambda: make_strategy("mirrored", 2),
    "central": lambda: make_strategy("central", 2),
    "one": lambda: tfdist.OneDeviceStrategy("CPU:1"),
}


def config(strategy):
    return estimator.RunConfig(train_distribute=strategy, eval_distribute=strategy)


def canned(optimizer):
    made = getattr(tf.keras.optimizers, optimizer)(0.05)
    columns = [tf.feature_column.numeric_column("x", shape=(3,))]

    def make(directory, strategy):
        return estimator.DNNClassifier(
            [4], columns, model_dir=str(directory), optimizer=made, config=config(strategy)
        )

    return make


def own(optimizer):
    kinds = {"SGD": v1.train.GradientDescentOptimizer, "Adam": v1.train.AdamOptimizer}

    def train(loss, model):
        return kinds[optimizer](0.05).minimize(loss, v1.train.get_global_step())

    def make(directory, strategy):
        plain = make_estimator(sequential(), directory, train)
        return estimator.Estimator(
            plain.model_fn, model_dir=str(directory), config=config(strategy)
        )

    return make


def with_head(optimizer):
    made = getattr(tf.keras.optimizers, optimizer)(0.05)

    def make(directory, strategy):
        return estimator.Estimator(
            head_model_fn(lambda: made), model_dir=str(directory), config=config(strategy)
        )

    return make


MODELS = {"canned": canned, "own": own, "head": with_head}


@pytest.mark.long("own-adam-central", "head-adam-mirrored", covered_by="the other cases")
@pytest.mark.long(
    "canned-*",
    covered_by="parallel/estimator/test_estimator_parity.py::test_canned_with_all_reduce",
)
# Adam has slots.
@pytest.mark.long("own-sgd-*", "head-sgd-*", covered_by="the other cases")
@pytest.mark.long(
    "own-adam-one", "head-adam-one", "head-adam-central", covered_by="the other cases"
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_equals_no_strategy(model, optimizer, kind, tmp_path):
    name, tolerance = OPTIMIZERS[optimizer]
    make, label = MODELS[model](name), "column" if model == "own" else "two"
    strategy = KINDS[kind]()
    whole = input_fn(label, batch=BATCH)
    part = input_fn(label, batch=BATCH // strategy.num_replicas_in_sync)

    # All start from a checkpoint that was written without a strategy.
    alone = make(tmp_path / "alone", None)
    alone.train(whole, max_steps=2)
    shutil.copytree(tmp_path / "alone", tmp_path / "copy")
    alone.train(whole, max_steps=2 + STEPS)
    distributed = make(tmp_path / "copy", strategy)
    distributed.train(part, max_steps=2 + STEPS)

    expected, found = values(alone), values(distributed)
    assert list(found) == list(expected)
    for variable, value in expected.items():
        np.testing.assert_allclose(found[variable], value, rtol=0, atol=tolerance, err_msg=variable)
    evaluated = distributed.evaluate(part, steps=ROWS // BATCH)
    # Then back: without a strategy, from the strategy's checkpoint.
    back = make(tmp_path / "copy", None)
    for key, value in back.evaluate(whole, steps=ROWS // BATCH).items():
        np.testing.assert_allclose(evaluated[key], value, rtol=0, atol=1e-5, err_msg=key)
    assert back.train(whole, steps=1).get_variable_value("global_step") == 3 + STEPS


def metrics(labels, logits):
    accuracy = tf.keras.metrics.BinaryAccuracy()
    accuracy.update_state(labels, tf.sigmoid(logits))
    old = v1.metrics.accuracy(labels, tf.cast(logits > 0, tf.float32))
    return {"keras": accuracy, "old": old}


@pytest.mark.long("central", "one", covered_by="the other cases")
@pytest.mark.parametrize("kind", KINDS)
def test_metrics_are_of_all_replicas(kind, tmp_path):
    strategy = KINDS[kind]()
    plain = make_estimator(sequential(), tmp_path, metrics=metrics)
    made = estimator.Estimator(plain.model_fn, model_dir=str(tmp_path), config=config(strategy))
    part = input_fn("column", batch=BATCH // strategy.num_replicas_in_sync)
    made.train(part, steps=5)
    evaluated = made.evaluate(part, steps=ROWS // BATCH)
    alone = plain.evaluate(input_fn("column", batch=ROWS), steps=1)
    assert evaluated["keras"] == evaluated["old"] == alone["keras"]


@pytest.mark.parametrize("kind", KINDS)
def test_moving_statistics(kind, tmp_path):
    """On several devices they are the mean of the replicas' statistics."""
    strategy = KINDS[kind]()

    def train(loss, model):
        step = v1.train.get_global_step()
        minimize = v1.train.GradientDescentOptimizer(0.0).minimize(loss, step)
        return tf.group(minimize, *model.updates)

    def build(x, training):
        layers = [tf.keras.layers.BatchNormalization(momentum=0.75), tf.keras.layers.Dense(1)]
        model = tf.keras.Sequential(layers)
        return model, model(x, training=training)

    plain = make_estimator(build, tmp_path, train)
    made = estimator.Estimator(plain.model_fn, model_dir=str(tmp_path), config=config(strategy))
    replicas = strategy.num_replicas_in_sync
    made.train(input_fn("column", batch=BATCH // replicas), steps=1)
    x = next(iter(input_fn("column", batch=BATCH)()))[0]["x"].numpy()
    for name, start, of in (("mean", 0, np.mean), ("variance", 1, np.var)):
        expected = np.mean([of(part, axis=0) for part in np.split(x, replicas)], axis=0)
        found = values(made)[f"sequential/batch_normalization/moving_{name}"]
        np.testing.assert_allclose(found, start * 0.75 + expected * 0.25, atol=1e-5)


@pytest.mark.long("one", "central", covered_by="the other cases")
@pytest.mark.parametrize("kind", KINDS)
def test_a_keras_model(kind, tmp_path):
    """It starts with the model's weights, and trains as without a strategy."""
    found = []
    for strategy in (None, KINDS[kind]()):
        layers = [
            tf.keras.Input((3,), name="x"),
            tf.keras.layers.Dense(1, activation="sigmoid", name="out"),
        ]
        model = tf.keras.Sequential(layers)
        model.set_weights([np.full((3, 1), 0.5), np.full((1,), 0.25)])
        model.compile("sgd", "binary_crossentropy", metrics=["accuracy"])
        made = estimator.model_to_estimator(
            model,
            model_dir=str(tmp_path / str(len(found))),
            checkpoint_format="saver",
            config=config(strategy),
        )
        replicas = strategy.num_replicas_in_sync if strategy else 1
        part = input_fn("column", batch=ROWS // replicas, only=["x"])
        made.train(part, steps=5)
        evaluated = made.evaluate(part, steps=1)
        # tf_keras divides it by the replicas, as it did in TensorFlow 2.15.
        evaluated["loss"] *= replicas
        found.append({**values(made), **evaluated})
    assert found[1]["global_step"] == 5
    for name, value in found[0].items():
        np.testing.assert_allclose(found[1][name], value, rtol=0, atol=EXACT, err_msg=name)


@pytest.mark.long("one", "central", covered_by="the other cases")
@pytest.mark.parametrize("kind", KINDS)
def test_warm_start(kind, tmp_path):
    first = canned("SGD")(tmp_path / "first", None)
    first.train(input_fn(), steps=1)
    second = estimator.DNNClassifier(
        [4],
        [tf.feature_column.numeric_column("x", shape=(3,))],
        model_dir=str(tmp_path / "second"),
        warm_start_from=str(tmp_path / "first"),
        config=config(KINDS[kind]()),
    )
    second.train(input_fn(), steps=1)
    started = tf.train.load_checkpoint(str(tmp_path / "second" / "model.ckpt-0"))
    for name in ("dnn/hiddenlayer_0/kernel", "dnn/logits/bias"):
        np.testing.assert_array_equal(started.get_tensor(name), values(first)[name])
