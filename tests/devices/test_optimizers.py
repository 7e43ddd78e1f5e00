"""Optimizers with accumulation, averages, loss scaling and clipping, and sparse gradients."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from devices.replicas import make_strategy
from support.training import models
from support.training.models import (
    ADAPTIVE,
    EXACT,
    built_classifier,
    classifier,
    difference,
    examples,
    train_like_no_strategy,
)
from support.training.more_models import (
    CLIPPED,
    embedding,
    ids_and_labels,
    loss_scaled_classifier,
    overflow_on_one_of_two,
)

STEPS = 12
SGD, Adam, LossScale = (
    keras.optimizers.SGD,
    keras.optimizers.Adam,
    keras.optimizers.LossScaleOptimizer,
)


def _fit(model):
    return model.fit(models.dataset(48 * STEPS, 48), verbose=0)


AVERAGED = {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 3}
OPTIMIZERS = {
    "accumulation": lambda: SGD(0.1, momentum=0.9, gradient_accumulation_steps=3),
    "moving_average": lambda: SGD(0.1, **AVERAGED),
    "both": lambda: SGD(0.1, gradient_accumulation_steps=2, **AVERAGED),
    "loss_scale": lambda: LossScale(SGD(0.1), initial_scale=8.0, dynamic_growth_steps=3),
    "loss_scale_accumulation": lambda: LossScale(SGD(0.1, gradient_accumulation_steps=3)),
    "schedule": lambda: SGD(keras.optimizers.schedules.CosineDecay(0.1, STEPS)),
}


@pytest.mark.long("mirrored-accumulation", "mirrored-schedule", covered_by="the other cases")
@pytest.mark.long("central-*", "mirrored-both", "mirrored-loss_scale", covered_by="the other cases")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_step(kind, name):
    train_like_no_strategy(make_strategy(kind, 3), lambda: classifier(OPTIMIZERS[name]()), _fit)


@pytest.mark.long(usual="mirrored-options0", covered_by="the other cases")
@pytest.mark.parametrize("options", [{"steps_per_execution": 4}, {"run_eagerly": True}])
def test_branching_optimizer_in_other_kinds_of_steps(strategy, options):
    train_like_no_strategy(strategy, lambda: classifier(OPTIMIZERS["both"](), **options), _fit)


@pytest.mark.long("central", covered_by="the other cases")
def test_accumulators_hold_all_replicas_gradients(strategy):
    """After the first of two steps: zero weights, so the gradient has a closed form."""
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="zeros")])
        model.compile(SGD(1.0, gradient_accumulation_steps=2), "mse")
    features = np.array([[1.0], [2.0], [3.0], [4.0]], "float32")
    model.fit(features, features, batch_size=4, shuffle=False, verbose=0)
    # The mean of -2 x y is -15, of which each replica accumulates its share times two replicas.
    accumulated = strategy.experimental_local_results(
        model.optimizer._accumulated_gradients[0].value
    )
    shares = [-2.5, -12.5] if len(accumulated) == 2 else [-7.5]
    assert [float(np.squeeze(a)) for a in accumulated] == shares
    np.testing.assert_array_equal(model.get_weights()[0], [[0.0]])
    model.fit(features, features, batch_size=4, shuffle=False, verbose=0)
    np.testing.assert_allclose(model.get_weights()[0], [[15.0]], rtol=1e-6)


@pytest.mark.long(
    "central-*", "mirrored-clipnorm", "mirrored-clipvalue", covered_by="the other cases"
)
@pytest.mark.parametrize("name", CLIPPED)
def test_clipping(kind, name):
    """The sum is clipped, as one process with the whole batch does."""
    build = lambda: classifier(CLIPPED[name]())  # noqa: E731
    train_like_no_strategy(make_strategy(kind, 3), build, _fit, ADAPTIVE)


@pytest.mark.long("central", covered_by="the other cases")
def test_clipping_by_replica(kind):
    """Keras by itself clips each replica's gradients before the sum."""
    strategy = make_strategy(kind, 2, clip="replica")
    limit = 0.1

    def build(**options):
        return built_classifier(keras.optimizers.AdamW(weight_decay=0.01, **options))

    keras.utils.set_random_seed(0)
    features, labels = examples(64 * STEPS)
    alone = build()
    models.train_by_clipped_means(alone, models.batches(features, labels, 64), limit)
    with strategy.scope():
        keras.utils.set_random_seed(0)
        model = build(clipnorm=limit)
    model.fit(features, labels, batch_size=64, shuffle=False, verbose=0)
    assert difference(model.get_weights(), alone.get_weights()) <= ADAPTIVE


@pytest.mark.long(usual="mirrored-adam", covered_by="the other cases")
@pytest.mark.parametrize(
    ("optimizer", "tolerance"), [(SGD, EXACT), (Adam, ADAPTIVE)], ids=["sgd", "adam"]
)
def test_embedding(strategy, optimizer, tolerance):
    """Ids repeat within a row, within a replica's share and between replicas; one never occurs."""
    ids, labels = ids_and_labels(64 * STEPS)
    options = {"batch_size": 64, "shuffle": False, "verbose": 0}
    keras.utils.set_random_seed(0)
    alone = embedding(optimizer(), sparse=False)
    start = alone.get_weights()
    alone.fit(ids, labels, **options)
    with strategy.scope():
        model = embedding(optimizer(), sparse=True)
        model.set_weights(start)
    model.fit(ids, labels, **options)
    assert difference(model.get_weights(), alone.get_weights()) <= tolerance
    np.testing.assert_array_equal(model.get_weights()[0][9], start[0][9])


@pytest.fixture
def mixed_float16():
    before = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_global_policy("mixed_float16")
    yield
    keras.mixed_precision.set_global_policy(before)


@pytest.mark.long("central", covered_by="the other cases")
def test_loss_scale_with_mixed_float16(strategy, mixed_float16):
    """keras-team/keras#18666."""
    with strategy.scope():
        keras.utils.set_random_seed(0)
        model = loss_scaled_classifier()
    overflow_on_one_of_two(model)
