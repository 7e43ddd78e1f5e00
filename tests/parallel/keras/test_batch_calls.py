"""Logs of a batch, and `train_on_batch`, `test_on_batch` and `predict_on_batch`, on two workers."""

from __future__ import annotations

import contextlib

import keras
import numpy as np

import tfdist
from support.processes.ranks import on_ranks
from support.training.models import difference

ROWS, CLASSES = 10, 3


def _data():
    random = np.random.default_rng(4)
    return random.normal(size=(ROWS, 4)), np.eye(CLASSES)[random.integers(CLASSES, size=ROWS)]


class WithVector(keras.Model):
    """Logs a vector of its own."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(CLASSES)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        y_pred = self(x, training=True)
        # The number of rows of a label: the replicas have different ones.
        return {"own": keras.ops.mean(y, axis=0), "scalar": keras.ops.mean(y_pred * 0 + 2.0)}


def _model(scope):
    keras.utils.set_random_seed(2)
    with scope:
        inputs = keras.Input((4,))
        hidden = keras.layers.Dense(5)(inputs)
        scores = keras.layers.Dense(CLASSES, activation="softmax")(hidden)
        model = keras.Model(inputs, {"scores": scores, "other": [hidden, scores * 2]})
        trained = keras.Model(inputs, scores)
        trained.compile("sgd", "mse", metrics=[keras.metrics.F1Score(name="f1")])
    return model, trained


def _batch_calls(scope):
    """The vectors that calls for one batch return."""
    _, trained = _model(scope)
    x, y = _data()
    trained_logs = trained.train_on_batch(x, y, return_dict=True)
    tested_logs = trained.test_on_batch(x, y, return_dict=True)
    return [trained_logs["f1"], tested_logs["f1"], trained_logs["loss"], tested_logs["loss"]]


def _like_alone(results):
    for result in results:
        assert difference(result, _batch_calls(contextlib.nullcontext())) <= 1e-6


@on_ranks(2, check=_like_alone)
def test_vectors_in_the_results_of_batch_calls_are_whole(ctx):
    return _batch_calls(tfdist.MultiWorkerMirroredStrategy().scope())


@on_ranks(2)
def test_vectors_in_the_logs_of_fit_are_whole(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    seen = []
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs: seen.append(logs))
    _, trained = _model(strategy.scope())
    x, y = _data()
    options = {"batch_size": ROWS, "verbose": 0, "shuffle": False}
    trained.fit(x, y, callbacks=[note], **options)
    assert np.shape(seen[0]["f1"]) == (CLASSES,)
    with strategy.scope():
        own = WithVector()
        own.build((None, 4))
        own.compile("sgd")
    history = own.fit(x, y, **options).history
    assert difference([history["own"][0]], [y.mean(axis=0)]) <= 1e-6
    assert history["scalar"] == [2.0]


def _own_rows(rank):
    return _data()[0][: 3 + rank]


@on_ranks(2)
def test_predict_on_batch_returns_the_rows_of_its_worker(ctx):
    model, trained = _model(tfdist.MultiWorkerMirroredStrategy().scope())
    one, other = _model(contextlib.nullcontext())
    for copy, original in ((one, model), (other, trained)):
        copy.set_weights(original.get_weights())
    x = _own_rows(ctx.rank)
    found, expected = (m.predict_on_batch(x) for m in (model, one))
    assert sorted(found) == sorted(expected)
    assert difference(keras.tree.flatten(found), keras.tree.flatten(expected)) <= 1e-6
    # Of all rows, before and after.
    whole = _data()[0]
    assert trained.predict(whole, verbose=0).shape == (ROWS, CLASSES)
    if ctx.rank == 0:  # no other member needs to make the call
        for _ in range(2):
            found = trained.predict_on_batch(whole[:5])
            assert difference([found], [other.predict_on_batch(whole[:5])]) <= 1e-6
    assert trained.predict(whole, verbose=0).shape == (ROWS, CLASSES)
