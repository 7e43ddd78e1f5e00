"""Keras 3 and 2 on R replicas equal one device with the R times larger batch."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf
import tf_keras

from devices.replicas import make_strategy
from support.training import custom_loop, models
from support.training.models import (
    ADAPTIVE,
    EXACT,
    built_classifier,
    classifier,
    difference,
    examples,
    normalized_classifier,
    train_like_no_strategy,
)

STEPS = 20
BATCH = 48  # divides by 2, 3 and 4
OPTIMIZERS = {
    "sgd": ("SGD", {"learning_rate": 0.1}, EXACT),
    "momentum": ("SGD", {"learning_rate": 0.05, "momentum": 0.9}, EXACT),
    "adam": ("Adam", {}, ADAPTIVE),
}


# Two devices for each optimizer, and four for Adam.
@pytest.mark.long(
    "*-3",
    "*-sgd-4",
    "*-momentum-2",
    "central-sgd-2",
    "central-adam-4",
    covered_by="the other cases",
)
@pytest.mark.parametrize(
    ("optimizer", "replicas"),
    [("sgd", 2), ("sgd", 3), ("sgd", 4), ("momentum", 2), ("adam", 2), ("adam", 3), ("adam", 4)],
)
def test_fit(kind, optimizer, replicas):
    name, options, tolerance = OPTIMIZERS[optimizer]
    model = train_like_no_strategy(
        make_strategy(kind, replicas),
        lambda: classifier(getattr(keras.optimizers, name)(**options)),
        lambda model: model.fit(models.dataset(BATCH * STEPS, BATCH), verbose=0),
        tolerance,
    )
    assert model.optimizer.iterations.numpy() == STEPS


@pytest.mark.long(usual="mirrored-3", covered_by="the other cases")
@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_evaluate_and_predict(kind, replicas):
    """200 and 101 rows divide neither by the batch nor by the replicas."""
    alone = built_classifier("sgd")
    with make_strategy(kind, replicas).scope():
        model = built_classifier("sgd")
    model.set_weights(alone.get_weights())
    evaluated = model.evaluate(models.dataset(200, BATCH), verbose=0)
    assert difference(evaluated, alone.evaluate(*examples(200), verbose=0)) <= 1e-6
    predicted = model.predict(models.dataset(101, 16), verbose=0)
    assert difference([predicted], [alone.predict(examples(101)[0], verbose=0)]) <= 1e-6


@pytest.mark.long(usual="mirrored-adam", covered_by="the other cases")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_tf_keras(strategy, optimizer):
    name, options, tolerance = OPTIMIZERS[optimizer]
    model = train_like_no_strategy(
        strategy,
        lambda: classifier(getattr(tf_keras.optimizers, name)(**options), library=tf_keras),
        lambda model: model.fit(models.dataset(BATCH * STEPS, BATCH), verbose=0),
        tolerance,
        library=tf_keras,
    )
    predicted = model.predict(models.dataset(101, 16), verbose=0)
    assert difference([predicted], [model(examples(101)[0])]) <= 1e-6


@pytest.mark.long("central-*", covered_by="the other cases")
@pytest.mark.parametrize("rows", [BATCH * 6, BATCH * 6 + 1], ids=["even", "one_replica_empty"])
def test_batch_normalization_is_by_replica(strategy, rows):
    """Each replica normalizes its own share; the moving statistics are the replicas' mean."""
    features, labels = examples(rows)
    keras.utils.set_random_seed(0)
    alone = normalized_classifier()
    models.train_by_replica_means(alone, models.batches(features, labels, BATCH), 2)
    with strategy.scope():
        keras.utils.set_random_seed(0)
        model = normalized_classifier()
    model.fit(features, labels, batch_size=BATCH, shuffle=False, verbose=0)
    assert difference(model.get_weights(), alone.get_weights()) <= EXACT
    assert difference(models.slots(model), models.slots(alone)) <= EXACT


@pytest.mark.long(usual="mirrored-mostly_empty", covered_by="the other cases")
@pytest.mark.parametrize("rows", [BATCH * 3 + 37, BATCH * 3 + 1], ids=["uneven", "mostly_empty"])
def test_last_batch(kind, rows):
    """A partial batch is split 13 + 13 + 11, or 1 + 0 + 0: all rows have the same weight."""
    features, labels = examples(rows)

    def build():
        return built_classifier(keras.optimizers.SGD(0.1))

    keras.utils.set_random_seed(0)
    alone = build()
    alone.fit(models.dataset(rows, BATCH), epochs=2, verbose=0)
    with make_strategy(kind, 3).scope():
        keras.utils.set_random_seed(0)
        model = build()
    data = models.dataset(rows, BATCH)
    model.fit(data, epochs=2, verbose=0)
    assert difference(model.get_weights(), alone.get_weights()) <= EXACT
    # Metrics weight all rows equally, however they are distributed.
    evaluated = model.evaluate(data, verbose=0)
    assert difference(evaluated, alone.evaluate(features, labels, verbose=0)) <= EXACT
    predicted = model.predict(data, verbose=0)
    assert difference([predicted], [alone.predict(features, verbose=0)]) <= 1e-6


@pytest.mark.long("*-sgd", "*-momentum", covered_by="the other cases")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_custom_loop(strategy, optimizer):
    name, options, tolerance = OPTIMIZERS[optimizer]
    results = []
    for each in (tf.distribute.get_strategy(), strategy):
        keras.utils.set_random_seed(0)
        results.append(custom_loop.train(each, name, options, BATCH, STEPS))
    custom_loop.assert_same(*results, tolerance)
