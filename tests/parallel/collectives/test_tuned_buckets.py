"""Buckets whose size is found by trying: equal sums, and one choice of all ranks."""

from __future__ import annotations

import logging
import re
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import on_ranks
from tfdist import ops
from tfdist.config.cluster import Cluster
from tfdist.job import process
from tfdist.ops.collectives import tuned_buckets

# Kilobytes instead of megabytes: 3 warm-up steps, 3 rounds of 4 steps for each size, the decision.
KB = 1 << 10
SIZES = {"1 MB": 64 * KB, "4 MB": 256 * KB, "16 MB": 1024 * KB}
SEARCH = 3 + 3 * 4 * len(SIZES)


class Log(logging.Handler):
    """Keeps the line about the choice."""

    def __init__(self):
        super().__init__()
        self.lines, self.arrived = [], threading.Event()
        logging.getLogger("tfdist.communication").addHandler(self)

    def emit(self, record):
        self.lines.append(record.getMessage())
        self.arrived.set()


def _make_small():
    # In the ranks' processes only.
    tuned_buckets.SIZES = SIZES
    tuned_buckets._BLOCK_BYTES = 64 * KB


def _digest(tensors):
    return b"".join(tensor.numpy().tobytes() for tensor in tensors)


def _same(results):
    assert all(result == results[0] for result in results)


@on_ranks(3, check=_same)
def test_the_sums_have_the_same_bits_at_every_size(ctx):
    _make_small()
    log = Log()
    comm = process.current.join(Cluster.from_environment()).communicator
    # Sums of three such values depend on their order.
    generator = np.random.default_rng(ctx.rank)
    values = [
        tf.constant(generator.normal(size=size).astype(dtype))
        for size, dtype in [
            *((n * 1000 + 17, "f4") for n in (1, 3, 20, 7, 90, 11, 30, 2, 25, 60)),
            (40_000, "f8"),
        ]
    ]
    exact = [ops.all_gather(v[tf.newaxis], comm).numpy().astype("f8").sum(0) for v in values]

    def reduce():
        return ops.fused_all_reduce(values, comm, bytes_per_pack="auto")

    digests = set()
    before = comm.stats().collectives
    collectives = set()
    for step in (tf.function(reduce), reduce):
        for _ in range(SEARCH + 2):
            reduced = step()
            digests.add(_digest(reduced))
            collectives.add(comm.stats().collectives - before)
            before = comm.stats().collectives
    assert len(digests) == 1
    for ours, expected in zip(reduced, exact, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-3, atol=1e-5)
    # The sizes differ in fact, and rank 0 logs the choice in the graph and eagerly.
    assert len(collectives) >= len(SIZES)
    if ctx.rank == 0:
        assert log.arrived.wait(20)
        assert re.match(
            r'rank 0: bytes_per_pack "auto" has chosen \d+ MB for .*; seconds of a step: 1 MB: ',
            log.lines[0],
        )
    return digests


@pytest.mark.long(
    covered_by=(
        "test_the_sums_have_the_same_bits_at_every_size, "
        "test_a_step_that_fails_ends_blocks_that_wait"
    )
)
@on_ranks(2, check=_same)
def test_fit_ends_with_the_weights_of_a_fixed_size(ctx):
    _make_small()
    weights = []
    for size in (0, "auto"):
        options = tfdist.CommunicationOptions(bytes_per_pack=size)
        strategy = tfdist.MultiWorkerMirroredStrategy(communication_options=options)
        with strategy.scope():
            keras.utils.set_random_seed(1)
            layers = [keras.layers.Dense(200, activation="tanh") for _ in range(6)]
            model = keras.Sequential([keras.Input((200,)), *layers])
            model.compile(keras.optimizers.Adam(), "mse", steps_per_execution=3)
        x = np.random.default_rng(0).normal(size=(8 * (SEARCH + 3), 200)).astype("f4")
        model.fit(x, x, batch_size=8, epochs=1, shuffle=False, verbose=0)
        weights.append(_digest([tf.convert_to_tensor(w) for w in model.get_weights()]))
    assert weights[0] == weights[1]
    return weights


@on_ranks(2)
def test_a_step_that_fails_ends_blocks_that_wait(ctx):
    _make_small()
    tuned_buckets._INITIAL = "16 MB"  # one bucket
    comm = process.current.join(Cluster.from_environment()).communicator

    @tf.function
    def step(fails):
        last = tf.ones([50_000])
        first = tf.ones([50_000])
        if fails:
            # After the other block has arrived.
            with tf.control_dependencies([tf.numpy_function(_wait, [], tf.int64)]):
                first = tf.debugging.check_numerics(first / 0.0, "it fails")
        return ops.fused_all_reduce([first, last], comm, bytes_per_pack="auto", timeout=30)

    step(False)
    if ctx.rank == 0:
        with pytest.raises(tf.errors.InvalidArgumentError, match="it fails"):
            step(True)
    else:
        with pytest.raises(tf.errors.UnavailableError, match="rank 0"):
            step(False)


def _wait():
    threading.Event().wait(0.3)
    return np.int64(0)
