"""Reductions and gathers over replicas, of all dtypes; replica r of R holds multiples of r + 1."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from devices.replicas import make_strategy
from support.training.models import built_classifier
from tfdist.strategies._local_reduce.local_all_reduce import LocalAllReduce

FLOATS = [tf.float16, tf.bfloat16, tf.float32, tf.float64]
INTEGERS = [tf.int32, tf.int64, tf.uint8, tf.int16]


def _replica(dtype=tf.float32):
    replica = tf.distribute.get_replica_context()
    return replica, tf.cast(replica.replica_id_in_sync_group + 1, dtype)


def _runs(strategy):
    return (strategy.run, tf.function(strategy.run))


@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_all_reduce_of_all_dtypes_together(kind, replicas):
    strategy = make_strategy(kind, replicas)
    dtypes = [*FLOATS, *INTEGERS, tf.complex64]

    def all_reduce():
        replica, one = _replica()
        values = [tf.cast(one * tf.range(5.0), dtype) for dtype in dtypes]
        return replica.all_reduce("SUM", values), replica.all_reduce("MEAN", values)

    total = replicas * (replicas + 1) // 2
    for run in _runs(strategy):
        sums, means = run(all_reduce)
        for dtype, summed, mean in zip(dtypes, sums, means, strict=True):
            for value in strategy.experimental_local_results(summed):
                assert value.dtype == dtype
                np.testing.assert_array_equal(value, total * np.arange(5))
            for value in strategy.experimental_local_results(mean):
                # In tf.distribute the mean of integers is a float.
                assert value.dtype == (tf.ones([], dtype) / 1).dtype
                np.testing.assert_array_equal(value, np.arange(5) * total / replicas)


def test_all_reduce_of_rows(strategy):
    """Rows of equal indices are summed, within a replica and between replicas."""

    def all_reduce(dtype):
        replica, one = _replica(dtype)
        rows = tf.reshape(tf.stack([one, one * 10, one * 100]), [3, 1])
        # Replica 0 holds rows 1, 1, 5; replica 1 holds 2, 2, 5.
        index = replica.replica_id_in_sync_group + 1
        slices = tf.IndexedSlices(rows, tf.stack([index, index, 5]), tf.constant([6, 1]))
        return replica.all_reduce("SUM", [slices, one]), replica.all_reduce("MEAN", slices)

    expected = np.array([[0], [11], [22], [0], [0], [300]], "float64")
    for dtype in (tf.float32, tf.float64):
        for run in _runs(strategy):
            (summed, one), mean = run(all_reduce, args=(dtype,))
            for slices in strategy.experimental_local_results(summed):
                assert isinstance(slices, tf.IndexedSlices)
                assert sorted(slices.indices.numpy()) == [1, 2, 5]
                np.testing.assert_array_equal(tf.convert_to_tensor(slices), expected)
            for slices in strategy.experimental_local_results(mean):
                np.testing.assert_array_equal(tf.convert_to_tensor(slices), expected / 2)
            assert [float(v) for v in strategy.experimental_local_results(one)] == [3.0, 3.0]


def _all_reduce(value, *more):
    return tf.distribute.get_replica_context().all_reduce("SUM", [value, *more])


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_all_reduce_of_what_all_replicas_share(kind, replicas):
    """TensorFlow returns the shared tensor itself as the sum."""
    strategy = make_strategy(kind, replicas)
    shared = tf.constant([1.0, 2.0])
    for run in _runs(strategy):
        total, other = run(_all_reduce, args=(shared, shared * 2))
        for value in strategy.experimental_local_results(total):
            np.testing.assert_array_equal(value, [replicas * 1.0, replicas * 2.0])
        for value in strategy.experimental_local_results(other):
            np.testing.assert_array_equal(value, [replicas * 2.0, replicas * 4.0])


def test_gather_of_numbers_and_strings(strategy):
    def gather():
        replica, one = _replica(tf.int32)
        text = tf.strings.as_string(tf.fill([one], one))  # replica r has r + 1 rows
        return replica.all_gather(text, axis=0), replica.all_gather(tf.fill([1, one], one), axis=1)

    for run in _runs(strategy):
        texts, numbers = run(gather)
        for value in strategy.experimental_local_results(texts):
            assert value.numpy().tolist() == [b"1", b"2", b"2"]
        for value in strategy.experimental_local_results(numbers):
            assert value.numpy().tolist() == [[1, 2, 2]]
        assert strategy.gather(run(gather)[0], axis=0).shape == (6,)


def test_reduce_of_nested_values(strategy):
    """All strategies take dicts, scalars with an axis, and different numbers of rows."""
    data = strategy.run(
        lambda: {
            "scalar": _replica()[1],
            "rows": tf.ones([_replica(tf.int32)[1], 2]) * _replica()[1],
        }
    )
    means = strategy.reduce("MEAN", data, axis=0)
    assert means["scalar"].numpy() == 1.5
    np.testing.assert_allclose(means["rows"], [5 / 3, 5 / 3], rtol=1e-6)


def test_one_fused_op_per_step(strategy):
    """One op reduces all gradients of a step."""
    with strategy.scope():
        model = built_classifier("sgd", middle=[keras.layers.Dense(5), keras.layers.Dense(7)])
        model.optimizer.build(model.trainable_variables)
    variables = model.trainable_variables
    assert len(variables) == 8

    @tf.function
    def step():
        def apply():
            model.optimizer.apply([tf.zeros(v.shape) for v in variables], variables)

        strategy.run(apply)

    operations = step.get_concrete_function().graph.get_operations()
    fused = [op for op in operations if op.type == "TfdistLocalReduce"]
    assert [len(op.outputs) for op in fused] == [8]
    assert not [op.type for op in operations if "Collective" in op.type or op.type == "AddN"]


class _Recorder(tf.distribute.ReductionToOneDevice):
    calls = 0

    def batch_reduce_implementation(self, *args):
        type(self).calls += 1
        return super().batch_reduce_implementation(*args)


def test_cross_device_ops_of_the_user():
    strategy = tfdist.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=_Recorder())
    run = tf.function(strategy.run)
    summed = run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", _replica()[1]))
    assert [v.numpy() for v in strategy.experimental_local_results(summed)] == [3.0, 3.0]
    assert _Recorder.calls == 1
    assert not isinstance(strategy.extended._get_cross_device_ops(summed), LocalAllReduce)


def test_mismatched_shapes_name_both(strategy):
    def all_reduce():
        replica, one = _replica(tf.int32)
        return replica.all_reduce("SUM", tf.ones([one + 2]))

    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)) as error:
        strategy.run(all_reduce)
    assert "3" in str(error.value) and "4" in str(error.value)
