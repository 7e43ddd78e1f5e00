"""Compression of the values that workers of `LocalUpdateStrategy` send at a synchronization."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import on_ranks
from support.training.models import identical
from tfdist.compression import BF16, FP16, PowerSGD, TopK
from tfdist.rules import DiLoCo, ModelAveraging

H, ROUNDS, SILENCE = 2, 3, 20
SHAPE = (20, 12)
METHODS = {"topk": TopK(0.1, min_elements=16), "powersgd": PowerSGD(2, min_elements=16)}


def gradient(rank: int, step: int) -> np.ndarray:
    """A worker's own gradient; zeros after the first rounds: the residuals are sent then."""
    if step >= H * ROUNDS:
        return np.zeros(SHAPE, "f4")
    return np.random.default_rng([rank, step]).normal(size=SHAPE).astype("f4")


def trainer(compression, rule=None):
    """A strategy, its variable of zeros, and a step that applies a gradient with rate 1."""
    strategy = tfdist.LocalUpdateStrategy(H, rule, compression=compression)
    with strategy.scope():
        weight = keras.Variable(np.zeros(SHAPE, "f4"))
        optimizer = keras.optimizers.SGD(1.0)
    workers = strategy.num_replicas_in_sync

    @tf.function
    def step(own):
        strategy.run(lambda g: optimizer.apply([g / workers], [weight]), args=(own,))

    return strategy, weight, step


@pytest.mark.long("*-powersgd", covered_by="the other cases")
@pytest.mark.parametrize("method", METHODS)
@on_ranks(2, check=identical)
def test_error_feedback_sends_all_in_the_end(ctx, method):
    """After silent rounds the weight equals uncompressed averaging's, the mean's."""
    strategy, weight, step = trainer(METHODS[method])
    total = sum(gradient(r, s) for r in (0, 1) for s in range(H * ROUNDS)) / 2
    for number in range(H * (ROUNDS + SILENCE)):
        step(tf.constant(gradient(ctx.rank, number)))
        if number == H * ROUNDS - 1:
            missing = np.max(np.abs(weight.numpy() + total))
            assert missing > 0.1, "no residual"
    strategy.synchronize()
    np.testing.assert_allclose(-weight.numpy(), total, atol=1e-4)
    return [weight.numpy()]


@on_ranks(2, check=identical)
def test_top_k_follows_its_recurrence(ctx):
    """BMUF's momentum on the sums of both workers' selected values, with their residuals."""
    eta = 0.5
    outer = DiLoCo(keras.optimizers.SGD(1.0, momentum=eta))
    _, weight, step = trainer(METHODS["topk"], outer)
    expected, velocity = np.zeros(SHAPE), np.zeros(SHAPE)
    rests = [np.zeros(SHAPE), np.zeros(SHAPE)]
    for number in range(H * ROUNDS):
        step(tf.constant(gradient(ctx.rank, number)))
        if number % H < H - 1:
            continue
        mean = np.zeros(SHAPE)
        for rank, rest in enumerate(rests):
            rest += sum(gradient(rank, s) for s in range(number - H + 1, number + 1)) / 2
            largest = np.argsort(-np.abs(rest), axis=None)[:24]
            mean.flat[largest] += rest.flat[largest]
            rest.flat[largest] = 0
        velocity = eta * velocity - mean
        expected += velocity
    np.testing.assert_allclose(weight.numpy(), expected, atol=1e-5)
    return [weight.numpy()]


@pytest.mark.long(
    covered_by="test_error_feedback_sends_all_in_the_end, parallel/collectives/test_compression.py"
)
@on_ranks(2, check=identical)
def test_bytes_of_each_method(ctx):
    """16 bits halve the bytes; methods with feedback send what docs/guides/compression.md says."""
    sent, weights = {}, {}
    methods = {"none": None, "fp16": FP16(min_elements=16), "bf16": BF16(min_elements=16)}
    for name, method in {**methods, **METHODS}.items():
        strategy, weight, step = trainer(method, ModelAveraging())
        for number in range(H - 1):
            step(tf.constant(gradient(ctx.rank, number)))
        before = strategy.communication_stats().bytes_sent
        step(tf.constant(gradient(ctx.rank, H - 1)))
        sent[name] = strategy.communication_stats().bytes_sent - before
        weights[name] = weight.numpy()
    rows = 8  # the number of rows, one float64
    values = 20 * 12
    assert sent == {
        "none": rows + 4 * values,
        "fp16": rows + 2 * values,
        "bf16": rows + 2 * values,
        "topk": rows + 8 + 8 * 24,  # a gather sends its length first
        "powersgd": rows + 4 * 2 * (20 + 12),
    }
    np.testing.assert_allclose(weights["fp16"], weights["none"], atol=4e-3)
    np.testing.assert_allclose(weights["bf16"], weights["none"], atol=4e-2)
    return [*weights.values()]
