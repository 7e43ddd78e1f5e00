"""The parts of `tf.keras`, whichever Keras that is, and of TensorFlow 1 that a model_fn may use."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from support.estimator.estimator_data import (
    ROWS,
    features,
    ignore_warnings,
    input_fn,
    labels,
    values,
)
from support.estimator.estimator_models import (
    assert_one_step,
    gradient_descent,
    head_model_fn,
    make_estimator,
    sequential,
    train_evaluate_predict,
)
from tfdist import estimator

pytestmark = ignore_warnings
v1 = tf.compat.v1
layers = tf.keras.layers


def functional(x, training):
    inputs = tf.keras.Input((3,))
    hidden = layers.Dense(4, name="hidden")(inputs)
    model = tf.keras.Model(inputs, layers.Dense(1)(hidden))
    return model, model(x, training=training)


def one_by_one(x, training):
    with v1.variable_scope("tower"):
        hidden = layers.Dense(4)(x)
    return None, layers.Dense(1)(hidden)


def with_input(x, training):
    model = tf.keras.Sequential([tf.keras.Input((3,)), layers.Dense(4), layers.Dense(1)])
    return model, model(x)


class Subclassed(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = layers.Dense(4), layers.Dense(1, name="logit")

    def call(self, x):
        return self.out(self.hidden(x))


def subclassed(x, training):
    model = Subclassed()
    return model, model(x)


# How the layers are put together, and the layers' names, the same with either Keras.
PUT_TOGETHER = {
    "sequential": (sequential(), ["sequential/dense", "sequential/dense_1"]),
    "with_input": (with_input, ["dense", "dense_1"]),
    "functional": (functional, ["dense", "hidden"]),
    "one_by_one": (one_by_one, ["dense_1", "tower/dense"]),
    "subclassed": (subclassed, ["subclassed/dense", "subclassed/logit"]),
}


@pytest.mark.parametrize("how", PUT_TOGETHER)
def test_layers_train_under_names_that_stay(how, tmp_path):
    build, names = PUT_TOGETHER[how]
    layers.Dense(1)  # one more of the kind, made before
    made = make_estimator(build, tmp_path)
    train_evaluate_predict(made)
    expected = ["global_step", *(f"{name}/{part}" for name in names for part in ("bias", "kernel"))]
    assert sorted(made.get_variable_names()) == sorted(expected)


def test_a_step_is_that_of_gradient_descent(tmp_path):
    made = make_estimator(sequential(), tmp_path)
    whole = input_fn("column", batch=ROWS)
    made.train(whole, steps=1)
    start = tf.train.load_checkpoint(str(tmp_path / "model.ckpt-0"))
    weights = [
        tf.Variable(start.get_tensor(f"sequential/{name}"))
        for name in ("dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias")
    ]
    with tf.GradientTape() as tape:
        logits = (features()["x"] @ weights[0] + weights[1]) @ weights[2] + weights[3]
        loss = tf.nn.sigmoid_cross_entropy_with_logits(labels()["column"], logits)
        gradients = tape.gradient(tf.reduce_mean(loss), weights)
    expected = weights[0] - 0.1 * gradients[0]
    np.testing.assert_allclose(values(made)["sequential/dense/kernel"], expected, atol=1e-6)


def with_updates(loss, model):
    return tf.group(gradient_descent(loss), *model.updates)


def test_moving_statistics(tmp_path):
    """They move by 1 - momentum towards the batch's, once a step, and evaluation uses them."""

    def build(x, training):
        model = tf.keras.Sequential([layers.BatchNormalization(momentum=0.75), layers.Dense(1)])
        return model, model(x, training=training)

    made = make_estimator(build, tmp_path, with_updates)
    train_evaluate_predict(made, steps=2)
    x = features()["x"]
    moved = {"mean": (0, x.mean(0)), "variance": (1, x.var(0))}
    for name, (start, target) in moved.items():
        found = values(made)[f"sequential/batch_normalization/moving_{name}"]
        expected = target + (start - target) * 0.75**2
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_dropout_drops_others_at_each_step(tmp_path):
    seen = []

    class Keep(estimator.SessionRunHook):
        def before_run(self, run_context):
            return estimator.SessionRunArgs(["first:0", "second:0"])

        def after_run(self, run_context, run_values):
            seen.extend(value.tobytes() for value in run_values.results)

    def build(x, training):
        dropout = layers.Dropout(0.5)
        for name in ("first", "second"):
            tf.identity(dropout(tf.ones([1, 64]), training=training), name=name)
        return None, layers.Dense(1)(x)

    made = make_estimator(build, tmp_path)
    made.train(input_fn("column"), hooks=[Keep()], steps=20)
    assert len(set(seen)) == len(seen) == 40
    assert sorted(made.get_variable_names()) == ["dense/bias", "dense/kernel", "global_step"]


def keras_metrics(labels, logits):
    accuracy, area = tf.keras.metrics.BinaryAccuracy(), tf.keras.metrics.AUC()
    accuracy.update_state(labels, tf.sigmoid(logits))
    area.update_state(labels, tf.sigmoid(logits))
    return {
        "keras": accuracy,
        "area": area,
        "old": v1.metrics.accuracy(labels, tf.cast(logits > 0, tf.float32)),
    }


def test_metrics(tmp_path):
    made = make_estimator(sequential(), tmp_path, metrics=keras_metrics)
    made.train(input_fn("column"), steps=5)
    evaluated = made.evaluate(input_fn("column"), steps=4)
    assert 0 < evaluated["keras"] == evaluated["old"]
    assert 0 < evaluated["area"] <= 1


def test_metrics_added_to_a_canned_estimator(tmp_path):
    column = tf.feature_column.numeric_column("x", shape=(3,))
    canned = estimator.LinearClassifier([column], model_dir=str(tmp_path))

    def metrics(labels, predictions):
        metric = tf.keras.metrics.BinaryAccuracy()
        metric.update_state(labels[:, None], predictions["logistic"])
        return {"added": metric}

    made = estimator.add_metrics(canned, metrics)
    made.train(input_fn(), steps=3)
    evaluated = made.evaluate(input_fn(), steps=4)
    assert evaluated["added"] == evaluated["accuracy"]


def test_a_metric_that_was_not_updated_is_refused(tmp_path):
    made = make_estimator(
        sequential(), tmp_path, metrics=lambda *_: {"unused": tf.keras.metrics.Mean("m")}
    )
    made.train(input_fn("column"), steps=1)
    with pytest.raises(ValueError, match="update_state"):
        made.evaluate(input_fn("column"), steps=1)


def legacy(loss, model):
    optimizer = tf.keras.optimizers.legacy.Adam(0.1)
    optimizer.iterations = v1.train.get_or_create_global_step()
    return optimizer.get_updates(loss, model.trainable_variables)[0]


OPTIMIZERS = {
    "v1_variables": lambda loss, model: v1.train.AdamOptimizer(0.1).minimize(
        loss, v1.train.get_global_step(), var_list=model.trainable_variables
    ),
    "v1_gradients": lambda loss, model: v1.train.AdamOptimizer(0.1).apply_gradients(
        zip(tf.gradients(loss, model.trainable_variables), model.trainable_variables, strict=True),
        v1.train.get_global_step(),
    ),
    "legacy": legacy,
}


@pytest.mark.long("v1_gradients", "legacy", covered_by="the other cases")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_take_the_variables_of_a_model(name, tmp_path):
    made = make_estimator(sequential(), tmp_path, OPTIMIZERS[name])
    before = train_evaluate_predict(made, steps=1)["loss"]
    made.train(input_fn("column", batch=ROWS), steps=5)
    assert made.evaluate(input_fn("column", batch=ROWS), steps=1)["loss"] < before


def test_a_head_with_a_legacy_optimizer(tmp_path):
    def make_optimizer():
        optimizer = tf.keras.optimizers.legacy.SGD(0.1)
        optimizer.iterations = v1.train.get_or_create_global_step()
        return optimizer

    made = estimator.Estimator(head_model_fn(make_optimizer), model_dir=str(tmp_path))
    made.train(input_fn(batch=ROWS), steps=1)
    assert_one_step(values(made)["sequential/dense/bias"])


def test_a_head_with_an_optimizer_that_was_made_before(tmp_path):
    optimizer = tf.keras.optimizers.SGD(0.1)
    made = estimator.Estimator(head_model_fn(lambda: optimizer), model_dir=str(tmp_path))
    made.train(input_fn(batch=ROWS), steps=1)
    assert_one_step(values(made)["sequential/dense/bias"])


@pytest.mark.parametrize("optimizer", ["Nadam", "AdamW"])
def test_optimizers_that_have_no_legacy_counterpart_are_refused(optimizer, tmp_path):
    made = getattr(tf.keras.optimizers, optimizer)()
    column = tf.feature_column.numeric_column("x", shape=(3,))
    canned = estimator.LinearClassifier([column], model_dir=str(tmp_path), optimizer=made)
    with pytest.raises(TypeError, match=f"expected one of Adadelta, .* received .*{optimizer}"):
        canned.train(input_fn(), steps=1)


def test_layers_of_tensorflow_1(tmp_path):
    def build(x, training):
        hidden = v1.layers.dense(x, 4, activation=tf.nn.relu, name="hidden")
        normalized = v1.layers.batch_normalization(hidden, training=training)
        return None, v1.layers.dense(v1.layers.dropout(normalized, training=training), 1)

    def train(loss, model):
        with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
            return gradient_descent(loss)

    made = make_estimator(build, tmp_path, train)
    train_evaluate_predict(made)
    found = values(made)
    assert {"hidden/kernel", "batch_normalization/gamma", "dense/bias"} < set(found)
    assert np.any(found["batch_normalization/moving_mean"] != 0)


def test_cells_of_tensorflow_1(tmp_path):
    def build(x, training):
        cell = v1.nn.rnn_cell.LSTMCell(2)
        outputs, _ = v1.nn.dynamic_rnn(cell, x[:, :, None], dtype=tf.float32)
        return None, v1.layers.dense(outputs[:, -1], 1)

    train_evaluate_predict(make_estimator(build, tmp_path))


def test_feature_columns_in_a_model_fn(tmp_path):
    column = tf.feature_column.numeric_column("x", shape=(3,))

    def build(x, training):
        dense = layers.DenseFeatures([column])({"x": x})
        old = v1.feature_column.input_layer({"x": x}, [column])
        linear = v1.feature_column.linear_model({"x": x}, [column])
        return None, layers.Dense(1)(tf.concat([dense, old], 1)) + linear

    train_evaluate_predict(make_estimator(build, tmp_path))
