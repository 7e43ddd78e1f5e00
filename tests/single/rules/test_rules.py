"""Rules as values: their arguments, and the region where EASGD is stable."""

from __future__ import annotations

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.rules import ADMM, BMUF, EASGD, DiLoCo, PostLocalSGD, StreamingDiLoCo
from tfdist.rules.easgd import largest_stable_alpha
from tfdist.strategies._local_updates.fragmented_group import fragment_bounds


def growth(rate: float, alpha: float, workers: int) -> float:
    """The factor by which EASGD grows on x^2 / 2 when each worker has had one turn."""
    whole = np.eye(workers + 1)
    for worker in range(workers):
        turn = np.eye(workers + 1)
        turn[worker, worker] = 1 - rate - alpha
        turn[worker, -1] = turn[-1, worker] = alpha
        turn[-1, -1] = 1 - alpha
        whole = turn @ whole
    return max(abs(np.linalg.eigvals(whole)))


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("rate", [0.1, 0.7, 1.0, 1.6, 1.95])
def test_asynchronous_easgd_is_stable_up_to_this_alpha(rate, workers):
    limit = largest_stable_alpha(rate)
    for alpha in np.linspace(0.02, 0.999, 20) * limit:
        assert growth(rate, alpha, workers) < 1
    if workers == 2:
        # The slowest mode changes the centre's sign at each turn, which an even number cannot keep.
        assert growth(rate, limit, workers) < 1
        return
    assert growth(rate, limit, workers) == pytest.approx(1)
    for alpha in limit * np.linspace(1.001, 1.5, 20):
        assert growth(rate, alpha, workers) > 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BMUF(1.0), "BMUF: expected 0 <= block_momentum < 1, received block_momentum=1.0"),
        (lambda: BMUF("0.9"), "received block_momentum='0.9'"),
        (lambda: BMUF(0.9, 0), "BMUF: expected block_learning_rate > 0, received"),
        (lambda: EASGD(0), "EASGD: expected 0 < alpha <= 1 / workers, received alpha=0"),
        (lambda: ADMM(-1), "ADMM: expected rho > 0, received rho=-1"),
        (lambda: PostLocalSGD(0), "to be a positive integer, received 0"),
        (lambda: StreamingDiLoCo(fragments=0), "to be an integer of at least 1, received 0"),
        (lambda: StreamingDiLoCo(delay=-1), "to be an integer of at least 0, received -1"),
        (lambda: StreamingDiLoCo(mixing=1), "expected 0 <= mixing < 1, received mixing=1"),
        (
            lambda: tfdist.LocalUpdateStrategy(4, StreamingDiLoCo(delay=4)),
            "expected delay of at most 3 with sync_every=4, received 4",
        ),
        (
            lambda: tfdist.LocalUpdateStrategy(4, StreamingDiLoCo(), slots="reset"),
            "expected slots to be 'keep' with StreamingDiLoCo, received 'reset'",
        ),
        (lambda: largest_stable_alpha(2.1), "expected 0 <= rate <= 2, received 2.1"),
        (lambda: tfdist.LocalUpdateStrategy(0), "sync_every to be an integer of at least 1, rec"),
        (lambda: tfdist.LocalUpdateStrategy(2, warmup_steps=-1), "warmup_steps to be an integer"),
        (lambda: tfdist.LocalUpdateStrategy(2, slots="drop"), "'reset', received 'drop'"),
        (lambda: tfdist.LocalUpdateStrategy(2, compression="zip"), "expected 'none', 'fp16'"),
        # Also alone, where a script is tried before it runs on several workers.
        (lambda: tfdist.LocalUpdateStrategy(2, EASGD(0.1), min_contributors=2), "received EASGD"),
        (lambda: tfdist.LocalUpdateStrategy(2, min_contributors=0), "None or 1 to 500, received 0"),
    ],
)
def test_wrong_values_are_named(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_wrong_types_are_named():
    with pytest.raises(TypeError, match="DiLoCo: expected outer to be an optimizer of Keras 3"):
        DiLoCo("sgd")
    with pytest.raises(TypeError, match="expected rule to be one of tfdist.rules, received 'avg'"):
        tfdist.LocalUpdateStrategy(2, "avg")


def test_outer_optimizers_are_copied():
    outer = keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.3, 10), beta_1=0.5)
    copy = DiLoCo(outer).outer_optimizer(2)
    assert copy is not outer and copy.get_config() == outer.get_config()


@pytest.mark.parametrize(
    ("sizes", "fragments", "bounds"),
    [
        ([5, 5, 5, 5], 2, [2]),
        ([1, 1, 98], 3, [1, 2]),
        ([98, 1, 1], 3, [1, 2]),
        ([10, 1, 10, 1, 10, 1], 3, [2, 4]),
        ([7], 1, []),
    ],
)
def test_fragments_have_about_as_many_elements(sizes, fragments, bounds):
    assert fragment_bounds(sizes, fragments) == bounds


def test_elastic_average_optimizer_of_tensorflow_1():
    """The case of its own test with two workers, which take turns: a step of 1, and elasticity 1/2.

    Each turn is a synchronization of one worker by the rule. In a `LocalUpdateStrategy` both would
    meet the centre at 0, and move it to 1.
    """
    rule = EASGD(0.5)
    centre, workers = keras.Variable(0.0), [0.0, 0.0]
    outer = rule.outer_optimizer(1)
    outer.build([centre])
    for rank in (0, 1):
        x, before = tf.constant(workers[rank] + 1.0), tf.convert_to_tensor(centre.value)
        outer.apply([centre.value - rule.contribution(x, before, {})], [centre])
        workers[rank] = float(rule.next_value(x, before, centre.value, {}))
    assert (*workers, float(centre)) == (0.5, 0.75, 0.75)
