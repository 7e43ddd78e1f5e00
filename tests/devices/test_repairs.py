"""Each repair for the replicas of one process is still needed, as those in tests/parallel are."""

from __future__ import annotations

import keras
import models
import numpy as np
import pytest
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.optimizers import base_optimizer
from keras.src.trainers.trainer import Trainer
from models import classifier, difference


@pytest.fixture
def undo(strategy, monkeypatch):
    """Puts Keras's own function back for one test; the strategy has repaired it."""

    def put_back(owner, name):
        monkeypatch.setattr(owner, name, getattr(owner, name).__wrapped__)

    return put_back


def _model(strategy, **options):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = classifier(keras.optimizers.SGD(**options))
        model.build((None, models.COLUMNS))
    return model


@pytest.mark.parametrize(
    "options",
    [{"gradient_accumulation_steps": 2}, {"use_ema": True, "ema_overwrite_frequency": 2}],
    ids=["accumulation", "moving_average"],
)
def test_replicas_cannot_meet_in_a_branch(strategy, monkeypatch, options):
    monkeypatch.setattr(base_optimizer, "ops", keras.ops)
    with pytest.raises(RuntimeError, match="merge_call|cross-replica context"):
        _model(strategy, **options).fit(models.dataset(64, 32), verbose=0)


@pytest.mark.parametrize("kind", ["central"], indirect=True)
def test_accumulators_lose_gradients(strategy, undo):
    def fit():
        model = _model(strategy, learning_rate=0.1, gradient_accumulation_steps=2)
        model.fit(models.dataset(128, 32), verbose=0)
        return model.get_weights()

    expected = fit()
    undo(TFOptimizer, "_backend_increment_gradient_accumulators")
    assert difference(fit(), expected) > 1e-3


def _model_built_outside(strategy):
    with strategy.scope():
        model = classifier("sgd")
        model.build((None, models.COLUMNS))
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    model.compile(optimizer, model.loss)
    return model


def test_an_optimizer_built_outside_the_scope_counts_every_replica(strategy, undo):
    undo(base_optimizer.BaseOptimizer, "apply")
    model = _model_built_outside(strategy)
    model.fit(models.dataset(128, 32), verbose=0)
    assert model.optimizer.iterations.numpy() == 4 * 2


def test_an_optimizer_built_outside_the_scope_is_refused(strategy):
    model = _model_built_outside(strategy)
    with pytest.raises(ValueError, match="optimizer 'adam.*' was made outside its scope"):
        model.fit(models.dataset(128, 32), verbose=0)


def test_logs_of_a_batch_are_means_of_metrics(strategy, undo):
    undo(Trainer, "get_metrics_result")
    seen = []
    record = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(logs["loss"])
    )
    model = _model(strategy, learning_rate=0.0)
    rows = 64 + 33  # split 32 + 32 and 17 + 16
    history = model.fit(models.dataset(rows, 64), verbose=0, callbacks=[record]).history
    assert abs(seen[-1] - history["loss"][0]) > 1e-6
    assert np.isfinite(seen[-1])
