"""Batches that do not divide by the replicas: `fit` equals one process, with any loss."""

from __future__ import annotations

import logging

import keras
import pytest
import tensorflow as tf
import tf_keras
from keras.src.backend.common import masking

from devices.replicas import make_strategy
from support.training import models, parity_models
from support.training.models import EXACT, classifier, train_like_no_strategy
from support.training.uneven_models import CASES, WAYS
from tfdist.keras.hooks import row_weights

# Shares of 4 and 3 rows; of 3, 3 and 1.
STRATEGIES = {"central": 2, "mirrored": 3}


@pytest.mark.long("mirrored-two outputs", covered_by="the other cases")
@pytest.mark.long(
    usual=("mirrored-mask", "mirrored-two outputs", "mirrored-a train_step"),
    covered_by="the other cases, parallel/keras/test_uneven_workers.py",
)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", STRATEGIES)
def test_loss(kind, name):
    found = parity_models.train(CASES[name], make_strategy(kind, STRATEGIES[kind]))
    parity_models.assert_like_alone(kind, name, CASES[name], found)


@pytest.mark.long("clipped", "several steps", covered_by="the other cases")
@pytest.mark.long("scaled", "eagerly", "mask, eagerly", covered_by="the other cases")
@pytest.mark.parametrize("name", WAYS)
def test_way(name):
    found = parity_models.train(WAYS[name], make_strategy("mirrored", 3))
    parity_models.assert_like_alone("mirrored", name, WAYS[name], found)


@pytest.mark.long("rows", covered_by="the other cases")
@pytest.mark.parametrize("masked", [False, True], ids=["rows", "mask"])
def test_tf_keras(masked):
    """The last batch has one row; of the others replicas have 3, 3 and 1."""
    steps, columns, rows = 5, 2, 7 * 3 + 1
    layers = tf_keras.layers
    x = tf.random.stateless_normal([rows, steps, columns], (1, 2)).numpy()
    y = x.sum(axis=2, keepdims=True)
    if masked:
        for row in range(rows):
            x[row, row % (steps + 1) :] = 0.0

    def build():
        masks = [layers.Masking()] if masked else []
        regularizer = tf_keras.regularizers.L2(0.01)
        hidden = layers.SimpleRNN(4, return_sequences=True, kernel_regularizer=regularizer)
        output = layers.Dense(1)
        model = tf_keras.Sequential([layers.Input((steps, columns)), *masks, hidden, output])
        model.compile(tf_keras.optimizers.SGD(0.1), "mse")
        return model

    train_like_no_strategy(
        make_strategy("mirrored", 3),
        build,
        lambda model: model.fit(x, y, batch_size=7, epochs=2, shuffle=False, verbose=0),
        EXACT,
        library=tf_keras,
    )


@pytest.mark.long("central", covered_by="the other cases")
def test_even_data_and_then_uneven(strategy):
    """Batches that are sure to divide need no exchange; other data needs another step function."""
    even = tf.data.Dataset.from_tensor_slices(models.examples(64)).batch(8, drop_remainder=True)
    functions = []

    def fit(model):
        for data in (even, models.dataset(29, 7), even):
            history = model.fit(data, verbose=0)
            functions.append((model.train_function, model.distribute_strategy))
        return history

    train_like_no_strategy(strategy, lambda: classifier(keras.optimizers.SGD(0.1)), fit)
    made = [function for function, of in functions if of is strategy]
    assert len(set(made)) == len(made) == 3


@pytest.mark.long("central", covered_by="the other cases")
def test_train_on_batch(strategy):
    """Every replica trains on the whole batch."""
    features, labels = models.examples(5)

    def fit(model):
        for _ in range(3):
            logs = model.train_on_batch(features, labels, return_dict=True)
        history = keras.callbacks.History()
        history.history = {name: [value] for name, value in logs.items()}
        return history

    train_like_no_strategy(strategy, lambda: classifier(keras.optimizers.SGD(0.1)), fit)


class Reducer(keras.Model):
    """Reduces its loss in a `tf.function`, or with a mask in a branch, of its own."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.output_layer = keras.layers.Dense(models.CLASSES)

    def call(self, inputs):
        return self.output_layer(inputs)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        def loss():
            if self.how == "branch":
                masking.set_keras_mask(y_pred, y > 0)
            return keras.losses.SparseCategoricalCrossentropy(from_logits=True)(y, y_pred)

        if self.how == "function":
            return tf.function(loss)()
        return tf.cond(tf.shape(y)[0] < 100, loss, loss)


@pytest.mark.long("central-*", covered_by="the other cases")
@pytest.mark.parametrize(
    ("how", "message"),
    [("function", "all replicas weigh the same"), ("branch", "Replicas weigh by their rows")],
)
def test_a_loss_that_cannot_be_weighted_is_logged_once(strategy, how, message, caplog):
    for warn in (row_weights._warn_of_function, row_weights._warn_of_branch):
        warn.cache_clear()
    with strategy.scope():
        model = Reducer(how)
        model.compile("sgd")
    with caplog.at_level(logging.WARNING, "tfdist"):
        model.fit(models.dataset(29, 7), epochs=2, verbose=0)
    assert [message in record.getMessage() for record in caplog.records] == [True]
