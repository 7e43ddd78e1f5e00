"""Synchronous workers with parameter servers equal one process with their batches put together."""

from __future__ import annotations

import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.ps_job import fit_dataset, on_job, served, train_like_alone
from support.tiers import chosen
from support.training import models
from support.training.models import (
    ADAPTIVE,
    EXACT,
    classifier,
    examples,
    identical,
    normalized_classifier,
)
from support.training.more_models import CLIPPED

STEPS = 20
OPTIMIZERS = {
    "sgd": (lambda: keras.optimizers.SGD(0.1), EXACT),
    "momentum": (lambda: keras.optimizers.SGD(0.05, momentum=0.9), EXACT),
    "adam": (lambda: keras.optimizers.Adam(), ADAPTIVE),
    "nadam": (lambda: keras.optimizers.Nadam(), ADAPTIVE),
    "moving_average": (lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9), EXACT),
    "accumulation": (lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), EXACT),
}


def agree(results) -> None:
    """The workers' results are the same to the last bit; the servers have none."""
    identical([r for r in results if r is not None])


def _weights(model):
    return [*model.get_weights(), *models.slots(model)]


@pytest.mark.long("*moving_average", covered_by="the other cases")
@pytest.mark.long("*-sgd", "*-momentum", "*-nadam", covered_by="the other cases")
@pytest.mark.parametrize("name", OPTIMIZERS)
@on_job(2, check=agree)
def test_two_workers(ctx, name):
    if served():
        return None
    make, tolerance = OPTIMIZERS[name]
    model = train_like_alone(
        lambda: classifier(make()), fit_dataset(STEPS, 64), tolerance, mode="sync"
    )
    assert model.distribute_strategy.num_replicas_in_sync == 2
    assert int(model.optimizer.iterations.numpy()) == STEPS // (2 if name == "accumulation" else 1)
    return _weights(model)


@pytest.mark.long(covered_by="parallel/keras/test_keras_optimizers.py::test_clipping")
@on_job(2, check=agree)
def test_clipping(ctx):
    """The sum is clipped, as one process with the whole batch does."""
    if served():
        return None
    results = []
    # The others on devices, in test_optimizers.py.
    for make in chosen(CLIPPED, "clipnorm", "loss_scale").values():
        model = train_like_alone(
            lambda make=make: classifier(make()), fit_dataset(STEPS, 64), ADAPTIVE, mode="sync"
        )
        results += _weights(model)
    return results


@on_job(2)
def test_gather(ctx):
    if served():
        return
    strategy = tfdist.ParameterServerStrategy(mode="sync")
    rank = ctx.rank

    @tf.function
    def step():
        replica = tf.distribute.get_replica_context()
        rows = tf.fill([rank * 2 + 1, 2], float(rank + 1))
        return replica.all_gather(rows, 0), replica.all_gather(tf.transpose(rows), 1)

    rows, columns = strategy.run(step)
    expected = np.repeat([1.0, 2.0], [1, 3])[:, np.newaxis] * np.ones(2)
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(columns, expected.T)
    nothing = strategy.gather(tf.zeros([0, 3]), axis=0)
    assert nothing.shape == (0, 3)


@on_job(2, check=agree)
def test_averages_that_the_chief_writes_late(ctx):
    """Moving averages replace the variables at the end of `fit`, on servers by the chief alone."""
    if served():
        return None
    late = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: time.sleep(0 if ctx.rank else 0.5)
    )
    make, tolerance = OPTIMIZERS["moving_average"]
    model = train_like_alone(
        lambda: classifier(make()),
        lambda model: model.fit(models.dataset(64 * 4, 64), callbacks=[late], verbose=0),
        tolerance,
        mode="sync",
    )
    return _weights(model)


@pytest.mark.long("*-sgd", covered_by="the other cases")
@pytest.mark.parametrize("name", ["sgd", "adam"])
@on_job(3, servers=2, check=agree)
def test_three_workers_and_two_servers(ctx, name):
    if served():
        return None
    make, tolerance = OPTIMIZERS[name]
    model = train_like_alone(
        lambda: classifier(make()),
        fit_dataset(STEPS, 96),
        tolerance,
        mode="sync",
        max_shard_bytes=64,
    )
    return _weights(model)


@on_job(2, check=agree)
def test_no_staleness_is_sync(ctx):
    if served():
        return None
    model = train_like_alone(
        lambda: classifier(OPTIMIZERS["momentum"][0]()),
        fit_dataset(STEPS, 64),
        EXACT,
        mode="ssp",
        staleness=0,
    )
    assert model.distribute_strategy.num_replicas_in_sync == 2
    return _weights(model)


@pytest.mark.long("*-uneven", covered_by="the other cases")
@pytest.mark.parametrize("rows", [64 * 3 + 37, 64 * 3 + 1], ids=["uneven", "one_worker_empty"])
@on_job(2, check=agree)
def test_last_batch(ctx, rows):
    """A partial batch is split 19 + 18, or 1 + 0: all rows have the same weight."""
    if served():
        return None
    features, labels = examples(rows)
    keras.utils.set_random_seed(0)
    alone = models.built_classifier(keras.optimizers.SGD(0.1))
    alone.fit(models.dataset(rows, 64), epochs=2, verbose=0)
    strategy = tfdist.ParameterServerStrategy(mode="sync")
    with strategy.scope():
        keras.utils.set_random_seed(0)
        model = models.built_classifier(keras.optimizers.SGD(0.1))
    model.fit(models.dataset(rows, 64), epochs=2, verbose=0)
    weights = model.get_weights()
    assert models.difference(weights, alone.get_weights()) <= EXACT
    # Each worker evaluates and predicts all rows.
    evaluated = model.evaluate(models.dataset(rows, 64), verbose=0)
    assert models.difference(evaluated, alone.evaluate(features, labels, verbose=0)) <= EXACT
    predicted = model.predict(models.dataset(rows, 64), verbose=0)
    assert predicted.shape == (rows, models.CLASSES)
    assert models.difference([predicted], [alone.predict(features, verbose=0)]) <= 1e-5
    return [*weights, predicted]


@on_job(2, check=agree)
def test_batch_normalization_is_by_worker(ctx):
    """Each worker normalizes its own share; the moving statistics are the workers' mean."""
    if served():
        return None
    features, labels = examples(64 * 5)
    keras.utils.set_random_seed(0)
    alone = normalized_classifier()
    for batch in models.batches(features, labels, 64):
        # After each step, not only at the end: the statistics are one shared variable.
        models.train_by_replica_means(alone, [batch], 2)
    strategy = tfdist.ParameterServerStrategy(mode="sync")
    with strategy.scope():
        keras.utils.set_random_seed(0)
        model = normalized_classifier()
    model.fit(features, labels, batch_size=64, shuffle=False, verbose=0)
    weights = model.get_weights()
    assert models.difference(weights, alone.get_weights()) <= EXACT
    return weights


@on_job(2, check=agree)
def test_loss_scale(ctx):
    """An overflow in one worker's share leaves the step out in both."""
    if served():
        return None
    from support.training.more_models import loss_scaled_classifier, overflow_on_one_of_two

    keras.mixed_precision.set_global_policy("mixed_float16")
    with tfdist.ParameterServerStrategy(mode="sync").scope():
        keras.utils.set_random_seed(0)
        model = loss_scaled_classifier()
    overflow_on_one_of_two(model)
    return _weights(model)


@on_job(2, check=agree)
def test_arrays_are_split(ctx):
    """`fit` on NumPy arrays: the last batch has 8 rows, 4 for each worker."""
    if served():
        return None
    features, labels = examples(200)

    def fit(model):
        return model.fit(features, labels, batch_size=64, epochs=2, shuffle=False, verbose=0)

    model = train_like_alone(lambda: classifier(keras.optimizers.SGD(0.1)), fit, EXACT, mode="sync")
    assert np.isfinite(model.get_weights()[0]).all()
    return _weights(model)
