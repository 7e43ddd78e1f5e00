"""Keras 3 on N workers equals Keras 3 in one process with the N times larger batch."""

from __future__ import annotations

import keras
import pytest

import tfdist
from support.processes.ranks import on_ranks
from support.training import models
from support.training.models import (
    ADAPTIVE,
    EXACT,
    built_classifier,
    classifier,
    difference,
    examples,
    identical,
    normalized_classifier,
)

STEPS = 20
OPTIMIZERS = {
    "sgd": (lambda: keras.optimizers.SGD(0.1), EXACT),
    "momentum": (lambda: keras.optimizers.SGD(0.05, momentum=0.9), EXACT),
    "adam": (lambda: keras.optimizers.Adam(), ADAPTIVE),
}


@pytest.mark.long("*-momentum", covered_by="the other cases")
@pytest.mark.parametrize("name", OPTIMIZERS)
@on_ranks(2, check=identical)
def test_fit_evaluate_predict(ctx, name):
    make_optimizer, tolerance = OPTIMIZERS[name]
    model = models.train_like_one_process(
        ctx,
        lambda: classifier(make_optimizer()),
        lambda model: model.fit(models.dataset(64 * STEPS, 64), verbose=0),
        tolerance,
    )
    assert model.optimizer.iterations.numpy() == STEPS
    evaluated = model.evaluate(models.dataset(200, 64), verbose=0)
    # 101 rows divide neither by the batch nor by the workers.
    predicted = model.predict(models.dataset(101, 16), verbose=0)
    if ctx.rank == 0:
        alone = built_classifier("sgd")
        alone.set_weights(model.get_weights())
        features, labels = examples(200)
        assert difference(evaluated, alone.evaluate(features, labels, verbose=0)) <= 1e-6
        assert difference([predicted], [alone.predict(examples(101)[0], verbose=0)]) <= 1e-6
    return [*model.get_weights(), *models.slots(model), evaluated, predicted]


@on_ranks(3, check=identical)
def test_fit_on_three_workers(ctx):
    model = models.train_like_one_process(
        ctx,
        lambda: classifier(keras.optimizers.SGD(0.1)),
        lambda model: model.fit(models.dataset(96 * STEPS, 96), verbose=0),
    )
    return model.get_weights()


@on_ranks(2, check=identical)
def test_batch_normalization_is_by_worker(ctx):
    """Each worker normalizes its own share; the moving statistics are the workers' mean.

    The last batch has one row, for rank 0; rank 1 keeps the statistics it has.
    """
    keras.utils.set_random_seed(0)
    features, labels = examples(64 * (STEPS - 1) + 1)
    alone = normalized_classifier()
    if ctx.rank == 0:
        models.train_by_replica_means(alone, models.batches(features, labels, 64), 2)
    with tfdist.MultiWorkerMirroredStrategy().scope():
        keras.utils.set_random_seed(ctx.rank)
        model = normalized_classifier()
    model.fit(features, labels, batch_size=64, shuffle=False, verbose=0)
    assert len(model.non_trainable_variables) == 2
    # On every rank, because reading the statistics averages them over the ranks.
    weights = model.get_weights()
    model.set_weights(weights)
    predicted = model.predict(features[:50], verbose=0)
    if ctx.rank == 0:
        assert difference(weights, alone.get_weights()) <= EXACT
        assert difference(models.slots(model), models.slots(alone)) <= EXACT
        # Inference uses the moving statistics, so here one process is a sound reference.
        assert difference([predicted], [alone.predict(features[:50], verbose=0)]) <= 1e-5
    return [*weights, *models.slots(model), predicted]


@pytest.mark.long("*-uneven", covered_by="the other cases")
@pytest.mark.parametrize("rows", [64 * 3 + 37, 64 * 3 + 1], ids=["uneven", "one_worker_empty"])
@on_ranks(2, check=identical)
def test_last_batch(ctx, rows):
    """A partial batch is split 19 + 18, or 1 + 0: all rows have the same weight."""
    features, labels = examples(rows)

    def build():
        return built_classifier(keras.optimizers.SGD(0.1))

    keras.utils.set_random_seed(0)
    alone = build()
    if ctx.rank == 0:
        alone.fit(models.dataset(rows, 64), epochs=2, verbose=0)
    with tfdist.MultiWorkerMirroredStrategy().scope():
        keras.utils.set_random_seed(ctx.rank)
        model = build()
    data = models.dataset(rows, 64)
    history = model.fit(data, epochs=2, verbose=0).history
    evaluated = model.evaluate(data, verbose=0, return_dict=True)
    predicted = model.predict(data, verbose=0)
    if ctx.rank == 0:
        assert difference(model.get_weights(), alone.get_weights()) <= EXACT
        # Metrics weigh every row the same, however the rows are spread.
        expected = alone.evaluate(features, labels, batch_size=rows, verbose=0, return_dict=True)
        assert difference([*evaluated.values()], [*expected.values()]) <= EXACT
        assert difference([predicted], [alone.predict(features, verbose=0)]) <= 1e-5
    return [*model.get_weights(), *history.values(), predicted]
