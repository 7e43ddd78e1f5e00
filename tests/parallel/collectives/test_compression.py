"""Compressed collectives against NumPy on several ranks: values, bits, bytes, disagreements."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from support.processes.ranks import on_ranks
from support.training.models import identical
from tfdist import ops
from tfdist.compression import BF16, FP16, OneBit, PowerSGD, TopK, compressor
from tfdist.config.cluster import Cluster
from tfdist.job import process

TOPK = TopK(0.1, min_elements=2)
POWER = PowerSGD(2, min_elements=2)


def join() -> ops.Communicator:
    return process.current.join(Cluster.from_environment()).communicator


def gradient(rank: int, step: int, *shape: int) -> np.ndarray:
    return np.random.default_rng([rank, step]).normal(size=shape).astype("float32")


@pytest.mark.long("3-ranks", covered_by="the other cases")
@on_ranks(2, 3, check=identical)
def test_16_bits(ctx):
    comm = join()
    results = []
    for method, kind in ((FP16(min_elements=1), tf.float16), (BF16(min_elements=1), tf.bfloat16)):
        # At once, on another thread, and in parts; odd segments.
        for count in (1, 7, 4096, 300_001, 1_300_001):
            parts = [gradient(r, count, count) for r in range(ctx.size)]
            for op, divisor in (("sum", 1), ("mean", ctx.size)):
                values = [parts[ctx.rank], parts[ctx.rank].astype("float64"), [ctx.rank + 1.0]]
                sums = compressor(method).all_reduce(values, comm, op)
                for value, dtype in zip(sums, ("float32", "float64", "float32"), strict=True):
                    assert value.dtype == dtype
                if ctx.size == 2:  # the one order in which two can be added
                    narrow = [p.astype(kind.as_numpy_dtype).astype("float32") for p in parts]
                    expected = (narrow[0] + narrow[1]).astype(kind.as_numpy_dtype)
                    expected = expected.astype("float32") / np.float32(divisor)
                    np.testing.assert_array_equal(sums[0], expected)
                    np.testing.assert_array_equal(sums[1], expected.astype("float64"))
                error = np.max(np.abs(sums[0] - sum(parts) / divisor))
                assert error < 2 ** (-7 if kind == tf.float16 else -4)
                assert sums[2].numpy() == [sum(range(1, ctx.size + 1)) / divisor]
                results += sums
    return results


@on_ranks(2, 3, check=identical)
def test_top_k_sends_each_ranks_largest(ctx):
    comm = join()
    top = compressor(TOPK)
    rests = [np.zeros([9, 13], "float32") for _ in range(ctx.size)]
    results = []
    for step in range(3):
        expected = np.zeros([9 * 13], "float32")
        for rank in range(ctx.size):
            values = (gradient(rank, step, 9, 13) + rests[rank]).ravel()
            largest = np.argsort(-np.abs(values), kind="stable")[:12]
            expected[largest] += values[largest] / np.float32(ctx.size)
            values[largest] = 0
            rests[rank] = values.reshape(9, 13)
        values = [gradient(ctx.rank, step, 9, 13), tf.constant(1.0), tf.constant([ctx.rank, 3])]
        sums = top.all_reduce(values, comm, "mean")
        np.testing.assert_array_equal(sums[0], expected.reshape(9, 13))
        assert float(sums[1]) == 1.0
        np.testing.assert_array_equal(sums[2], [(ctx.size - 1) // 2, 3])
        results += sums
    return results


def quantized(values: np.ndarray) -> np.ndarray:
    """Each column with two values: the means of its negative values and of the others."""
    result = np.empty_like(values)
    for column in range(values.shape[1]):
        for side in (values[:, column] < 0, values[:, column] >= 0):
            if side.any():
                mean = np.mean(values[side, column], dtype="float64")
                result[side, column] = mean.astype("float32")
    return result


@on_ranks(2, 3, check=identical)
def test_one_bit_quantizes_gradients_and_sums(ctx):
    """Step after step as in the paper; every rank sums some of the columns, and the one vector."""
    comm = join()
    reduce = tf.function(compressor(OneBit(min_elements=2)).all_reduce)
    shapes = [(3, 6, 7), (40,), (5, 1)]
    flat = [(18, 7), (40, 1), (5, 1)]
    rests = [[np.zeros(s, "float32") for s in flat] for _ in range(ctx.size)]
    rests_of_sums = [np.zeros(s, "float32") for s in flat]
    results = []
    for step in range(4):
        op, divisor = ("mean", ctx.size) if step % 2 else ("sum", 1)
        expected = []
        for i, (shape, matrix) in enumerate(zip(shapes, flat, strict=True)):
            whole = np.zeros(matrix, "float32")
            for rank in range(ctx.size):
                values = gradient(rank, 10 * step + i, *shape).reshape(matrix) + rests[rank][i]
                sent = quantized(values)
                rests[rank][i] = values - sent
                whole += sent
            whole = whole / np.float32(divisor) + rests_of_sums[i]
            expected.append(quantized(whole))
            rests_of_sums[i] = whole - expected[i]
        own = [gradient(ctx.rank, 10 * step + i, *s) for i, s in enumerate(shapes)]
        values = [tf.constant(value) for value in own]
        *sums, plain = reduce([*values, tf.constant([ctx.rank + 1])], comm, op)
        assert plain.numpy() == [sum(range(1, ctx.size + 1)) // divisor]
        for received, wanted, shape in zip(sums, expected, shapes, strict=True):
            np.testing.assert_allclose(received, wanted.reshape(shape), atol=1e-5)
        results += sums
    return results


@on_ranks(2, 3)
def test_one_bit_loses_nothing(ctx):
    """The applied gradients and all residuals are the sum of all gradients."""
    comm = join()
    one_bit = compressor(OneBit(min_elements=2))
    variable = tf.Variable(tf.zeros([14, 11]))
    total, applied = np.zeros([14, 11]), np.zeros([14, 11])
    for step in range(30):
        total += sum(gradient(r, step, 14, 11) for r in range(ctx.size))
        value = tf.constant(gradient(ctx.rank, step, 14, 11))
        applied += one_bit.all_reduce([value], comm, variables=[variable])[0]
    (state,) = one_bit._states.of([variable], [variable], comm.handle)
    columns = state.variable("residual_of_sum", None)
    rests = ops.all_reduce(state.variable("residual", None), comm)
    rests += tf.transpose(ops.all_gather(tf.transpose(columns), comm))
    assert np.max(np.abs(applied - total)) > 0.1
    np.testing.assert_allclose(applied + rests, total, atol=1e-3)


@on_ranks(2, 3, check=identical)
def test_power_sgd_approximates_the_sum(ctx):
    comm = join()
    power = compressor(POWER)
    right = tf.random.stateless_normal([7, 2], seed=(8, 1907)).numpy()
    rests = [np.zeros([12, 7]) for _ in range(ctx.size)]
    results = []
    for step in range(3):
        matrices = [gradient(r, step, 12, 7) + rest for r, rest in enumerate(rests)]
        left, _ = np.linalg.qr(sum(matrices) @ right)
        right = sum(matrices).T @ left
        rests = [m - left @ left.T @ m for m in matrices]
        values = [gradient(ctx.rank, step, 3, 4, 7), tf.range(3.0) + ctx.rank]
        sums = power.all_reduce(values, comm)
        np.testing.assert_allclose(sums[0], (left @ right.T).reshape(3, 4, 7), atol=1e-4)
        np.testing.assert_array_equal(sums[1], ctx.size * np.arange(3.0) + sum(range(ctx.size)))
        results += sums
    return results


@on_ranks(2, 3, check=identical)
def test_nothing_is_lost_but_only_comes_later(ctx):
    comm = join()
    results = []
    for method in (TOPK, POWER):
        reduce = tf.function(compressor(method).all_reduce)
        total, applied = np.zeros([14, 11]), np.zeros([14, 11])
        for step in range(24):  # and then silence, in which what was kept is sent
            parts = [gradient(r, step, 14, 11) * (step < 6) for r in range(ctx.size)]
            total += sum(parts)
            (sent,) = reduce([tf.constant(parts[ctx.rank])], comm)
            applied += sent
            if step == 5:
                assert np.max(np.abs(applied - total)) > 0.1
        np.testing.assert_allclose(applied, total, atol=1e-4)
        results.append(applied)
    return results


@on_ranks(2)
def test_bytes_on_the_wire(ctx):
    comm = join()
    # 300 x 200, a vector of 2,000 and 24 that is small, all float32: of two ranks each sends once
    # what it reduces.
    values = [tf.ones([300, 200]), tf.ones([2000]), tf.ones([24])]

    def sent_by(reduce):
        before = comm.stats().bytes_sent
        reduce()
        return comm.stats().bytes_sent - before

    def compressed(method):
        return sent_by(lambda: compressor(method).all_reduce(values, comm))

    assert compressed("none") == 4 * 62_024
    assert compressed("fp16") == compressed("bf16") == 2 * 62_000 + 4 * 24
    gathered = sent_by(lambda: ops.all_gather(tf.zeros([2 * (600 + 20)], tf.int32), comm))
    assert 8 * 620 <= gathered <= 8 * 620 + 16
    assert compressed("topk") == gathered + 4 * 24
    # 100 of 200 columns to the other rank, of 300 bits each; the vector's column to rank 0.
    half, vector = 100 * (2 + 300 / 32), 2 + 63
    to_other, sums = (half, half + vector) if ctx.rank == 0 else (half + vector, half)
    assert 4 * (to_other + sums + 24) <= compressed("onebit") <= 4 * (to_other + sums + 24) + 64
    assert compressed("powersgd") == 4 * (4 * (300 + 200) + 2024)


@pytest.mark.parametrize("other", ["none", "bf16"])
@on_ranks(2)
def test_ranks_that_compress_differently_are_told(ctx, other):
    comm = join()
    method = "fp16" if ctx.rank == 0 else other
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        compressor(method).all_reduce([tf.ones([2000])], comm, label="dense/kernel")
    message = str(raised.value)
    assert "the ranks disagree on a collective" in message and "'dense/kernel'" in message
    assert "float[2000] as half" in message
