"""Rules of `LocalUpdateStrategy` on quadratics, against their papers' recurrences."""

from __future__ import annotations

import keras
import pytest
import quadratics
from models import identical
from ranks import on_ranks

import tfdist
from tfdist.rules import BMUF, DiLoCo, ModelAveraging, PostLocalSGD

H, ROUNDS = 3, 6
ETA, ZETA = 0.5, 0.8


def trained(rule, **kwargs) -> float:
    """The weight after some rounds from 0."""
    with tfdist.LocalUpdateStrategy(H, rule, **kwargs).scope():
        model = quadratics.quadratic()
    model.fit(quadratics.rows(H * ROUNDS), verbose=0)
    return float(model.get_weights()[0])


def averaged() -> float:
    x = 0.0
    for _ in range(ROUNDS):
        x = quadratics.mean_after(x, H)
    return x


def classic() -> float:
    x = delta = 0.0
    for _ in range(ROUNDS):
        delta = ETA * delta + ZETA * (quadratics.mean_after(x, H) - x)
        x += delta
    return x


def nesterov() -> float:
    """The paper's form: a round begins at W + eta D; the last anchor is where one would begin."""
    x = delta = start = 0.0
    for _ in range(ROUNDS):
        delta = ETA * delta + ZETA * (quadratics.mean_after(start, H) - start)
        x += delta
        start = x + ETA * delta
    return start


@on_ranks(2, check=identical)
def test_rules_follow_their_recurrences(ctx):
    sgd = keras.optimizers.SGD
    cases = {
        "averaging": (ModelAveraging(), averaged()),
        "BMUF without momentum": (BMUF(0.0), averaged()),
        "classic BMUF": (BMUF(ETA, ZETA), classic()),
        "Nesterov BMUF": (BMUF(ETA, ZETA, nesterov=True), nesterov()),
        "DiLoCo with SGD(1)": (DiLoCo(sgd(1.0)), averaged()),
        "DiLoCo with momentum": (DiLoCo(sgd(ZETA, momentum=ETA)), classic()),
        "DiLoCo with Nesterov": (DiLoCo(sgd(ZETA, momentum=ETA, nesterov=True)), nesterov()),
    }
    assert len({expected for _, expected in cases.values()}) == 3
    found = {name: trained(rule) for name, (rule, _) in cases.items()}
    assert found == pytest.approx({name: x for name, (_, x) in cases.items()}, abs=2e-6)
    return [*found.values()]


@pytest.mark.parametrize("form", ["rule", "argument"])
@on_ranks(2)
def test_warmup_averages_after_each_step(ctx, form):
    if form == "rule":
        found, expected = trained(PostLocalSGD(7)), 0.0
    else:
        # Momentum between rounds begins after the warm-up.
        found, expected = trained(BMUF(ETA, ZETA), warmup_steps=7), 0.0
    for _ in range(7):
        expected = quadratics.mean_after(expected, 1)
    delta = 0.0
    for steps in (3, 3, 3, 2):  # 18 steps in all
        move = quadratics.mean_after(expected, steps) - expected
        delta = move if form == "rule" else ETA * delta + ZETA * move
        expected += delta
    assert found == pytest.approx(expected, abs=2e-6)
