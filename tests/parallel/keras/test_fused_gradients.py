"""Gradients travel in buckets, each as soon as its last gradient exists."""

from __future__ import annotations

import re
from collections.abc import Iterable

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import on_ranks
from support.training import models
from tfdist import ops
from tfdist.config.cluster import Cluster
from tfdist.job import process


def _values(rank: int) -> list:
    """Tensors of several dtypes, shapes and sizes, an empty one, and rows."""
    return [
        tf.fill([100], 1.0 + rank),
        tf.fill([3, 7], tf.constant(2 + rank, tf.int64)),
        tf.fill([40], 3.0 + rank),
        tf.IndexedSlices(tf.fill([rank, 4], 4.0), tf.range(rank), tf.constant([1000, 4])),
        tf.fill([0, 5], 0.0),
        tf.fill([9], tf.constant(6.0 + rank, tf.bfloat16)),
        tf.constant(7.0 + rank),
    ]


@on_ranks(2, 3)
def test_a_list_of_anything(ctx):
    comm = process.current.join(Cluster.from_environment()).communicator
    ranks = ctx.size * (ctx.size - 1) // 2
    in_function = tf.function(
        lambda: ops.fused_all_reduce(_values(ctx.rank), comm, bytes_per_pack=200)
    )
    for reduce in (
        lambda: ops.fused_all_reduce(_values(ctx.rank), comm),
        lambda: ops.fused_all_reduce(_values(ctx.rank), comm, bytes_per_pack=1),
        in_function,
    ):
        reduced = reduce()
        for position, (before, after) in enumerate(zip(_values(0), reduced, strict=True)):
            assert after.dtype == before.dtype
            if position == 3:
                rows = [4.0 * (ctx.size - 1 - i) for i in range(ctx.size - 1)]
                np.testing.assert_array_equal(after.indices, np.arange(ctx.size - 1))
                np.testing.assert_array_equal(after.values[:, 2], rows)
            else:
                expected = np.full(before.shape, ctx.size * (position + 1) + ranks)
                np.testing.assert_array_equal(tf.cast(after, tf.float64), expected)
    means = ops.fused_all_reduce(_values(ctx.rank), comm, "mean")
    np.testing.assert_allclose(means[0], np.full([100], 1 + ranks / ctx.size), rtol=1e-6)
    with pytest.raises(ValueError, match="positive bytes_per_pack, or 'auto', received 0"):
        ops.fused_all_reduce([tf.constant(1.0)], comm, bytes_per_pack=0)


class Watched(keras.Sequential):
    """Keeps the graph of its training step."""

    graph = None

    def train_step(self, data):
        logs = super().train_step(data)
        self.graph = tf.compat.v1.get_default_graph()
        return logs


def _all_before(operation: tf.Operation) -> set[tf.Operation]:
    """All that must have run before the operation starts."""
    found, ahead = set(), [operation]
    while ahead:
        latest = ahead.pop()
        before = {tensor.op for tensor in latest.inputs} | set(latest.control_inputs)
        ahead.extend(before - found)
        found |= before
    return found


def _layers(operations: Iterable[tf.Operation]) -> set[str]:
    return {layer for op in operations for layer in re.findall(r"layer\d", op.name)}


@on_ranks(2, check=models.identical)
def test_a_bucket_waits_for_its_own_gradients_only(ctx):
    layers = [keras.layers.Dense(8, activation="tanh", name=f"layer{i}") for i in range(4)]
    strategy = tfdist.MultiWorkerMirroredStrategy(
        communication_options=tfdist.CommunicationOptions(bytes_per_pack=8 * 8 * 4)
    )
    with strategy.scope():
        keras.utils.set_random_seed(ctx.rank)
        model = Watched([*layers, keras.layers.Dense(models.CLASSES, name="layer4")])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(), loss)
    model.fit(models.dataset(64 * 3, 64), verbose=0)

    reductions = [op for op in model.graph.get_operations() if op.type == "TfdistAllReduce"]
    # The others carry the rows and the loss.
    buckets = [op for op in reductions if len(op.inputs) > 1]
    carried = [_layers(tensor.op for tensor in bucket.inputs) for bucket in buckets]
    assert carried == [{"layer4", "layer3"}, {"layer2"}, {"layer1"}, {"layer0"}]
    for bucket, later in zip(buckets, [{0, 1, 2}, {0, 1}, {0}, set()], strict=True):
        before = _all_before(bucket)
        assert not before & set(buckets)
        backward = {op for op in before if "gradient" in op.name and "MatMul_1" in op.name}
        assert not _layers(backward) & {f"layer{i}" for i in later}
    # Nor does a variable wait for other buckets than its own.
    updates = [op for op in model.graph.get_operations() if op.type == "AssignSubVariableOp"]
    awaited = [_all_before(update) & set(buckets) for update in updates]
    assert len(updates) == len(model.trainable_variables)
    assert all(len(own) == 1 for own in awaited) and set().union(*awaited) == set(buckets)
    return model.get_weights()


@on_ranks(2, check=models.identical)
def test_accumulated_gradients_travel_when_they_are_applied(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    with strategy.scope():
        keras.utils.set_random_seed(ctx.rank)
        model = keras.Sequential([keras.Input((200,)), keras.layers.Dense(100)])
        model.compile(keras.optimizers.Adam(gradient_accumulation_steps=4), "mse")
        model.optimizer.build(model.trainable_variables)  # rank 0 tells the others its slots
    features = np.random.default_rng(ctx.rank).normal(size=(64, 200)).astype("float32")
    data = tf.data.Dataset.from_tensors((features, features[:, :100])).repeat(8)
    before = strategy.communication_stats().bytes_sent
    model.fit(data, verbose=0)
    sent = strategy.communication_stats().bytes_sent - before
    size = 4 * model.count_params()
    assert 2 * size <= sent < 2.2 * size, sent / size  # two updates in eight steps
    return model.get_weights()
