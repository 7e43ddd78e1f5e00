"""Optimizers that are made outside of `strategy.scope()`, with parameter servers."""

from __future__ import annotations

import contextlib
import importlib

import keras
import numpy as np
import pytest

import tfdist
from support.ps_job import meet, on_job, served
from support.training import scope_cases
from support.training.models import ADAPTIVE, difference
from tfdist.keras.workers import is_on_servers

# `devices/test_outside_of_scope.py` has the other cases.
CASES = ("optimizer outside", "built optimizer outside", "own optimizers outside")


@pytest.mark.long(
    covered_by="test_workers_count_their_steps_together, devices/test_outside_of_scope.py"
)
@on_job(2)
def test_trained(ctx):
    if served():
        return
    expected = [scope_cases.trained(case, contextlib.nullcontext) for case in CASES]
    strategy = tfdist.ParameterServerStrategy(mode="sync")
    for case, alone in zip(CASES, expected, strict=True):
        found = scope_cases.trained(case, strategy.scope)
        meet(ctx, case)
        assert difference(found, alone) <= ADAPTIVE, case


def _momentum():
    return keras.optimizers.SGD(0.1, momentum=0.9)


def _scaled():
    return keras.optimizers.LossScaleOptimizer(_momentum(), initial_scale=2.0)


def _accumulating():
    return keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2)


@pytest.mark.long(covered_by="test_workers_count_their_steps_together")
@on_job(2)
def test_trained_by_tf_keras(ctx):
    if served():
        return
    cases = ("optimizer outside", "own optimizers outside")
    expected = [scope_cases.trained(case, contextlib.nullcontext, "tf_keras") for case in cases]
    strategy = tfdist.ParameterServerStrategy(mode="sync")
    for case, alone in zip(cases, expected, strict=True):
        found = scope_cases.trained(case, strategy.scope, "tf_keras")
        meet(ctx, case)
        # Without the predictions, before four variables: a worker predicts its share of the rows.
        for values in (found, alone):
            values.pop(-5)
        assert difference(found, alone) <= ADAPTIVE, case
    with pytest.raises(ValueError, match="'Adam' was made and built outside of strategy.scope"):
        scope_cases.trained("built optimizer outside", strategy.scope, "tf_keras")


@pytest.mark.long("2-ranks-_accumulating", covered_by="the other cases")
@pytest.mark.parametrize("make", [_momentum, _scaled, _accumulating])
@on_job(1)
def test_the_same_variables_are_shared(ctx, make):
    """Also of an optimizer that is older than the strategy, of which no role is known."""
    if served():
        return
    older = make()
    strategy = tfdist.ParameterServerStrategy()
    with strategy.scope():
        models = [scope_cases.built(keras) for _ in range(3)]
        models[0].compile(make(), "mse")
    for model, optimizer in zip(models[1:], (make(), older), strict=True):
        model.compile(optimizer, "mse")
    shared = []
    for model in models:
        model.fit(*scope_cases.rows(), batch_size=scope_cases.BATCH, verbose=0)
        shared.append([is_on_servers(v.value) for v in model.optimizer.variables])
    assert any(shared[0])
    assert shared[1] == shared[2] == shared[0]


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
@on_job(2)
def test_workers_count_their_steps_together(ctx, library):
    if served():
        return
    chosen = importlib.import_module(library)
    optimizer = chosen.optimizers.SGD(0.1)
    strategy = tfdist.ParameterServerStrategy()
    with strategy.scope():
        model = scope_cases.built(chosen)
    model.compile(optimizer, "mse")
    x, y = (np.tile(part, (2, 1)) for part in scope_cases.rows())
    model.fit(x, y, batch_size=scope_cases.BATCH, verbose=0)
    meet(ctx, "trained")
    assert optimizer.iterations.numpy() == len(x) // scope_cases.BATCH
