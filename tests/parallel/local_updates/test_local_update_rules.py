"""Rules of `LocalUpdateStrategy` on quadratics, against their papers' recurrences."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import on_ranks
from support.tiers import chosen
from support.training import quadratics
from support.training.models import identical
from tfdist.rules import ADMM, BMUF, EASGD, DiLoCo, ModelAveraging, PostLocalSGD

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
    cases = chosen(cases, "averaging", "classic BMUF", "Nesterov BMUF", "DiLoCo with Nesterov")
    found = {name: trained(rule) for name, (rule, _) in cases.items()}
    assert found == pytest.approx({name: x for name, (_, x) in cases.items()}, abs=2e-6)
    return [*found.values()]


@pytest.mark.long(covered_by="test_rules_follow_their_recurrences")
@on_ranks(2)
def test_warmup_averages_after_each_step(ctx):
    """Momentum between rounds begins after the warm-up."""
    for eta, rule, warmup_steps in ((0, PostLocalSGD(7), 0), (ETA, BMUF(ETA), 7)):
        expected = delta = 0.0
        for _ in range(7):
            expected = quadratics.mean_after(expected, 1)
        for steps in (3, 3, 3, 2):  # 18 steps in all
            delta = eta * delta + quadratics.mean_after(expected, steps) - expected
            expected += delta
        assert trained(rule, warmup_steps=warmup_steps) == pytest.approx(expected, abs=2e-6)


@on_ranks(2, check=identical)
def test_easgd_is_elastic(ctx):
    """Within an epoch a worker keeps its own variables; at its end it is at the centre."""
    alpha, centre, x = 0.3, 0.0, [0.0, 0.0]
    for _ in range(ROUNDS):
        x = [quadratics.alone(x[rank], rank, H) for rank in (0, 1)]
        pulls = [alpha * (value - centre) for value in x]
        x = [value - pull for value, pull in zip(x, pulls, strict=True)]
        centre += sum(pulls)
    found = trained(EASGD(alpha))
    assert found == pytest.approx(centre, abs=2e-6)
    with pytest.raises(ValueError, match=r"alpha <= 1 / workers with 2 workers, received alpha=0"):
        tfdist.LocalUpdateStrategy(H, EASGD(0.6))
    return [found]


@pytest.mark.long(covered_by="test_rules_follow_their_recurrences")
@on_ranks(2, check=identical)
def test_admm_solves_least_squares(ctx):
    """The workers' rows differ, so that averaging ends elsewhere than the normal equations."""
    random = np.random.default_rng(5)
    features = random.normal(size=(40, 3)) * np.where(np.arange(40) < 20, 1.5, 0.5)[:, np.newaxis]
    labels = features @ [1.0, -2.0, 0.5] + random.normal(size=40)
    solution = np.linalg.lstsq(features, labels, rcond=None)[0]
    batch = tf.data.Dataset.from_tensors(
        (features.astype("f4"), labels[:, np.newaxis].astype("f4"))
    )
    distances, histories = {}, {}
    for rule in (ModelAveraging(), ADMM(0.5)):
        with tfdist.LocalUpdateStrategy(10, rule).scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, use_bias=False)])
            model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=100)
        history = model.fit(batch.repeat(400), epochs=2, verbose=0).history
        name = type(rule).__name__
        distances[name] = np.abs(model.get_weights()[0][:, 0] - solution).max()
        histories[name] = history
    assert distances["ModelAveraging"] > 0.01
    assert distances["ADMM"] < 1e-4
    assert "primal_residual" not in histories["ModelAveraging"]
    for name in ("primal_residual", "dual_residual"):
        assert 0 <= histories["ADMM"][name][1] < 1e-3
    return [model.get_weights()[0], *histories["ADMM"].values()]


def constant_gradients(rule, sync_every, gradient):
    """Two variables, 0 and 1, after each of three steps with a constant gradient and rate 1."""
    strategy = tfdist.LocalUpdateStrategy(sync_every, rule)
    with strategy.scope():
        variables = [keras.Variable(0.0), keras.Variable(1.0)]
        optimizer = keras.optimizers.SGD(1.0)
    own = gradient / strategy.num_replicas_in_sync
    values = []
    for _ in range(3):
        strategy.run(lambda: optimizer.apply([tf.constant(own)] * 2, variables))
        values.append([float(v.numpy()) for v in variables])
    strategy.synchronize()
    return values, [float(v.numpy()) for v in variables]


@on_ranks(2)
def test_model_average_optimizer_of_tensorflow_1(ctx):
    """The case of its own test: gradients -1 and -2, two steps from one average to the next."""
    values, _ = constant_gradients(ModelAveraging(), 2, -1.0 - ctx.rank)
    first = 1.0 + ctx.rank
    assert values == [[first, first + 1], [3, 4], [3 + first, 4 + first]]


@on_ranks(1)
def test_elastic_average_optimizer_of_tensorflow_1(ctx):
    """The case of its own test with one worker: the centre is at 2 after the second step.

    The end pulls the worker from 1 to the centre, and the centre to the worker.
    """
    values, ends = constant_gradients(EASGD(1.0), 2, -1.0)
    assert values == [[1, 2], [0, 1], [1, 2]]
    assert ends == [1, 2]
