"""Callbacks for training without a strategy."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import tfdist
from support.processes.ranks import on_ranks
from support.training import models
from support.training.models import identical
from tfdist.callbacks import (
    BroadcastGlobalVariablesCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
)


class Rates(keras.callbacks.Callback):
    """Notes the learning rate and the first momentum before and after every batch."""

    def __init__(self):
        super().__init__()
        self.rates, self.ratios = [], []

    def on_train_batch_begin(self, batch, logs=None):
        self.rates.append(float(self.model.optimizer.learning_rate))
        if batch + len(self.rates) > 1:
            self.ratios.append(self._momentum() / self._after)

    def on_train_batch_end(self, batch, logs=None):
        self._after = self._momentum()

    def _momentum(self):
        return float(self.model.optimizer.momentums[0].numpy().ravel()[0])


@on_ranks(2, check=identical)
def test_beginning_alike_and_averaging(ctx):
    """Different seeds end equal; the best epoch is the same on all ranks."""
    tfdist.init()
    features, labels = models.examples(64)
    results = []
    for build in (models.built_classifier, models.classifier):
        keras.utils.set_random_seed(ctx.rank)
        model = build(
            tfdist.DistributedOptimizer(keras.optimizers.Adam(0.01 * (1 + ctx.rank))),
            middle=[keras.layers.Dropout(0.1)],
        )
        own = [array[ctx.rank :: 2] for array in (features, labels)]
        history = model.fit(
            *own,
            validation_data=[array[: 8 * (ctx.rank + 1)] for array in own],
            epochs=2,
            verbose=0,
            callbacks=[BroadcastGlobalVariablesCallback(1), MetricAverageCallback()],
        ).history
        assert float(model.optimizer.learning_rate) == pytest.approx(0.02)
        results += [*model.get_weights(), *models.slots(model)]
        results += [history[name] for name in sorted(history)]
    return results


@on_ranks(2)
def test_metrics_are_means(ctx):
    tfdist.init()
    logs = {"loss": 1.0 + ctx.rank, "accuracy": np.float32(0.5 * ctx.rank), "list": [1, 2]}
    MetricAverageCallback().on_epoch_end(0, logs)
    assert logs == {"loss": 1.5, "accuracy": 0.25, "list": [1, 2]}
    MetricAverageCallback().on_epoch_end(1, {})


@on_ranks(4)
def test_warm_up(ctx):
    """From a quarter of the rate to the rate, by equal amounts; momentum follows."""
    tfdist.init()
    model = models.built_classifier(keras.optimizers.SGD(1.0, momentum=0.9))
    features, labels = models.examples(3 * 8)
    rates = Rates()
    history = model.fit(
        features,
        labels,
        batch_size=8,
        epochs=3,
        verbose=0,
        callbacks=[LearningRateWarmupCallback(0.4, 2, verbose=1), rates],
    ).history
    expected = [0.1 + 0.3 * min(step, 6) / 6 for step in range(1, 10)]
    np.testing.assert_allclose(rates.rates, expected, rtol=1e-6)
    np.testing.assert_allclose(rates.ratios, np.divide(expected[1:], expected[:-1]), rtol=1e-5)
    np.testing.assert_allclose(history["learning_rate"], expected[2::3], rtol=1e-6)

    endless = LearningRateWarmupCallback(0.4)
    endless.set_params({"steps": None})
    with pytest.raises(ValueError, match="LearningRateWarmupCallback: expected steps_per_epoch"):
        endless.on_train_batch_begin(0)


@on_ranks(1)
def test_schedules(ctx):
    tfdist.init()
    model = models.built_classifier(keras.optimizers.SGD(1.0, momentum=0.9))
    features, labels = models.examples(16)
    rates = Rates()
    callbacks = [
        LearningRateScheduleCallback(0.5, lambda epoch: 1.0, end_epoch=1),
        LearningRateScheduleCallback(0.5, 0.1, start_epoch=1, momentum_correction=False),
        rates,
    ]
    model.fit(features, labels, batch_size=8, epochs=3, verbose=0, callbacks=callbacks)
    np.testing.assert_allclose(rates.rates, np.repeat([0.5, 0.5, 0.05], 2), rtol=1e-6)
    np.testing.assert_allclose(rates.ratios, 1.0)
    for multiplier in ("0.1", None, True):
        with pytest.raises(TypeError, match="a function of the epoch or a number, received"):
            LearningRateScheduleCallback(0.5, multiplier)
