"""Callbacks of an elastic `fit` that act on the training: all members stay equal, bit for bit.

A worker is killed and another one joins in the middle of it. The oracle is a process alone.
"""

from __future__ import annotations

import contextlib
import functools
import importlib

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.elastic.acting_callbacks import (
    BATCHES,
    Collect,
    Evaluate,
    Lose,
    Momentum,
    Multiply,
    Noise,
    Prune,
    RateByCounter,
    UnseededNoise,
    UnseededRate,
    made,
)
from support.processes.ranks import start_ranks

pytestmark = pytest.mark.timeout(240)
EPOCHS, BATCH, COLUMNS = 4, 8, 3
TIMEOUT = 90.0


def examples():
    random = np.random.default_rng(3)
    x = random.normal(size=(BATCHES * BATCH, COLUMNS))
    return x, np.sin(x @ [[1.0], [2.0], [3.0]])


def own_weight_of_the_loss(keras):
    # Of no model and no optimizer.
    weight = tf.Variable(1.0, dtype="float64", trainable=False)
    loss = lambda y, output: weight * tf.reduce_mean((y - output) ** 2, -1)  # noqa: E731
    return loss, [made(keras, RateByCounter), made(keras, Multiply, weight)]


def schedules(keras):
    kinds = keras.callbacks
    callbacks = [
        kinds.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        kinds.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=10.0),
        made(keras, Multiply),
    ]
    return "mse", callbacks


def weights(keras):
    return "mse", [made(keras, Prune), made(keras, Noise)]


def own_state(keras):
    return "mse", [made(keras, Momentum)]


def evaluates(keras):
    return "mse", [made(keras, Evaluate, *examples())]


def fit(library, case, job=None, *more, scope=None):
    keras = importlib.import_module(library)
    keras.backend.set_floatx("float64")
    keras.utils.set_random_seed(1)
    with scope or contextlib.nullcontext():
        model = keras.Sequential(
            [
                keras.Input((COLUMNS,)) if library == "keras" else keras.layers.Input((COLUMNS,)),
                keras.layers.Dense(1),
            ]
        )
        optimizers = keras.optimizers
        if library == "tf_keras" and case is schedules:
            optimizers = keras.optimizers.legacy  # which make the rate in the first step
        loss, callbacks = case(keras)
        model.compile(optimizers.SGD(0.05, momentum=0.9), loss, metrics=["mae"])
    losses = []
    collect = made(keras, Collect, losses)
    lose = [] if job is None else [made(keras, Lose, *more)]
    history = model.fit(
        *examples(),
        batch_size=BATCH,
        epochs=EPOCHS,
        verbose=0,
        callbacks=[*callbacks, collect, *lose],
    )
    own = [callback for callback in callbacks if hasattr(callback, "results")]
    return {
        "weights": model.get_weights(),
        "rate": float(model.optimizer.learning_rate.numpy()),
        "slots": [np.array(v) for v in _slots(model.optimizer)],
        "collected": collect.result(),
        "losses": losses,
        "results": [callback.results for callback in own],
        "history": {name: list(map(float, v)) for name, v in history.history.items()},
        "epochs": history.epoch,
    }


def _slots(optimizer):
    variables = optimizer.variables
    return variables() if callable(variables) else variables


def train(ctx, library, case, batch):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    job = strategy.elastic_job
    return fit(library, case, job, ctx, job, batch, scope=strategy.scope())


def train_alone(ctx, library, case):
    return fit(library, case)


@functools.cache
def alone(library, case):
    with start_ranks(train_alone, 1, args=(library, case)) as ranks:
        (outcome,) = ranks.join(TIMEOUT)
    assert outcome.ok, outcome.describe()
    return outcome.result


def lose_one(library, case, batch, tmp_path):
    """Returns the results of the worker that stays, and of the worker that has joined it."""
    env = {"TFDIST_ELASTIC": "1:2"}
    args = (library, case, batch)
    with start_ranks(train, 2, args=args, env=env, tmp_path=tmp_path) as ranks:
        ranks.wait_until(lambda: not ranks[1].alive, TIMEOUT, "the end of rank 1")
        ranks.restart(1)
        outcomes = ranks.join(TIMEOUT)
    for outcome in outcomes:
        assert outcome.ok, outcome.describe()
    return [outcome.result for outcome in outcomes]


def assert_equal(own, other, tolerance, what=""):
    if isinstance(other, dict):
        assert own.keys() == other.keys(), what
        for name in other:
            assert_equal(own[name], other[name], tolerance, f"{what} {name}")
    elif isinstance(other, list):
        assert len(own) == len(other), (what, own, other)
        for own_item, item in zip(own, other, strict=True):
            assert_equal(own_item, item, tolerance, what)
    elif isinstance(other, str):
        assert own == other, what
    else:
        np.testing.assert_allclose(own, other, rtol=0, atol=tolerance, err_msg=what)


CASES = [
    (own_weight_of_the_loss, 1),
    (schedules, 1),
    (schedules, BATCHES - 1),
    (weights, 1),
    (weights, BATCHES - 1),
    (own_state, 1),
    (evaluates, 1),
]


# Both Kerases share the code.
@pytest.mark.long(
    "keras-schedules-3", "keras-weights-*", "keras-own_state-1", covered_by="the other cases"
)
@pytest.mark.long("tf_keras-*", usual="tf_keras-own_state-*", covered_by="the other cases")
@pytest.mark.long("keras-evaluates-1", covered_by="the other cases")
@pytest.mark.parametrize(("case", "batch"), CASES)
@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_members_stay_equal(library, case, batch, tmp_path):
    stays, joins = lose_one(library, case, batch, tmp_path)
    assert_equal(joins, stays, 0.0)
    assert_equal(stays, alone(library, case), 1e-10)


def train_at_random(ctx, library, kind, *args):
    keras = importlib.import_module(library)
    keras.backend.set_floatx("float64")
    strategy = tfdist.MultiWorkerMirroredStrategy()
    keras.utils.set_random_seed(1)
    with strategy.scope():
        layers = keras.layers
        model = keras.Sequential(
            [
                keras.Input((COLUMNS,)) if library == "keras" else layers.Input((COLUMNS,)),
                layers.Dense(1, name="last"),
            ]
        )
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    callback = made(keras, kind, *args)
    x, y = examples()
    model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=[callback])
    return model.get_weights(), getattr(callback, "rates", []), strategy.elastic_job.size


@pytest.mark.long("tf_keras", covered_by="the other cases")
@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_the_rate_is_that_of_rank_0(library):
    args = (library, UnseededRate)
    with start_ranks(train_at_random, 3, args=args, env={"TFDIST_ELASTIC": "1:3"}) as ranks:
        outcomes = ranks.join(TIMEOUT)
    for outcome in outcomes:
        assert outcome.ok, outcome.describe()
        assert_equal(list(outcome.result), list(outcomes[0].result), 0.0)
    assert len(set(outcomes[0].result[1])) == EPOCHS * BATCHES


@pytest.mark.long("tf_keras", covered_by="the other cases")
@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_a_worker_ends_whose_weights_differ(library):
    args = (library, UnseededNoise, 1.0)
    with start_ranks(train_at_random, 2, args=args, env={"TFDIST_ELASTIC": "1:2"}) as ranks:
        outcomes = ranks.join(TIMEOUT)
    by_name = {outcome.exception or "": outcome for outcome in outcomes}
    assert by_name.keys() == {"", "TfdistError"}, "\n".join(o.describe() for o in outcomes)
    assert "in 1 variables" in by_name["TfdistError"].message
    assert "last/kernel" in by_name["TfdistError"].message, by_name["TfdistError"].message
    assert by_name[""].result[2] == 1


def test_weights_that_differ_by_rounding_become_equal():
    args = ("keras", UnseededNoise, 1e-13)
    with start_ranks(train_at_random, 2, args=args, env={"TFDIST_ELASTIC": "1:2"}) as ranks:
        outcomes = ranks.join(TIMEOUT)
    for outcome in outcomes:
        assert outcome.ok, outcome.describe()
        assert_equal(list(outcome.result), list(outcomes[0].result), 0.0)
    assert outcomes[0].result[2] == 2
