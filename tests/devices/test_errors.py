"""Errors of strategies, and several strategies in one process."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from devices.replicas import DEVICES, make_strategy

PAIR = ["CPU:0", "CPU:1"]
BAD_LISTS = {
    "text": ("CPU:0", TypeError, r"expected a list of device names, received 'CPU:0'"),
    "number": (2, TypeError, r"expected a list of device names, received 2"),
    "iterator": (iter(PAIR), TypeError, r"expected a list of device names, received <"),
    "numbers": ([0, 1], TypeError, r"expected a list of device names, received \[0, 1\]"),
    "empty": ([], ValueError, r"expected at least one device, received \[\]"),
    "twice": (
        ["CPU:1", "/device:cpu:1"],
        ValueError,
        r"expected each device once, received \['CPU:1', '/device:cpu:1'\]",
    ),
    "unknown": (
        ["CPU:0", f"CPU:{DEVICES}"],
        ValueError,
        rf"no device 'CPU:{DEVICES}' on this machine, found CPU:0, .*, CPU:{DEVICES - 1}",
    ),
    "remote": (["/job:worker/task:1/CPU:0"], ValueError, r"no device '/job:worker/task:1/CPU:0'"),
    "no_gpu": (["GPU:0"], ValueError, r"no device 'GPU:0' on this machine, found CPU:0"),
    "no_device": (["CPU:0", "worker"], ValueError, r"'worker'"),
    "no_index": (["CPU:one"], ValueError, r"'CPU:one'"),
}


@pytest.mark.parametrize(
    "make", [tfdist.MirroredStrategy, tfdist.CentralStorageStrategy], ids=["mirrored", "central"]
)
@pytest.mark.parametrize("case", BAD_LISTS)
def test_devices_are_checked(make, case):
    devices, error, message = BAD_LISTS[case]
    with pytest.raises(error, match=f"^{make.__name__}: .*{message}"):
        make(devices)


@pytest.mark.parametrize(
    ("device", "error", "message"),
    [
        ("CPU:9", ValueError, r"no device 'CPU:9' on this machine, found CPU:0"),
        (3, TypeError, r"expected a device name, received 3"),
        (["CPU:0"], TypeError, r"expected a device name, received \['CPU:0'\]"),
    ],
    ids=["unknown", "number", "list"],
)
def test_a_single_device_is_checked(device, error, message):
    with pytest.raises(error, match=f"^CentralStorageStrategy: {message}"):
        tfdist.CentralStorageStrategy(PAIR, parameter_device=device)
    with pytest.raises(error, match=f"^OneDeviceStrategy: {message}"):
        tfdist.OneDeviceStrategy(device)


def test_the_parameter_device_need_not_compute():
    strategy = tfdist.CentralStorageStrategy(PAIR, parameter_device="CPU:3")
    with strategy.scope():
        variable = tf.Variable(1.0)
    assert strategy.num_replicas_in_sync == 2
    assert variable.device.endswith("CPU:3")


def _rows(count) -> tf.Tensor:
    """[count + r, 3] on replica r."""
    return tf.ones([count + tf.distribute.get_replica_context().replica_id_in_sync_group, 3])


BOTH_SHAPES = r"replica 1.*expected \[2,3\] as on replica 0, received \[3,3\]"


def test_different_shapes_are_named(strategy):
    def reduce(count):
        return strategy.reduce("SUM", strategy.run(_rows, args=(count,)), axis=None)

    def all_reduce(count):
        return tf.distribute.get_replica_context().all_reduce("SUM", _rows(count))

    with pytest.raises(tf.errors.InvalidArgumentError, match=BOTH_SHAPES):
        reduce(2)
    with pytest.raises(tf.errors.InvalidArgumentError, match=BOTH_SHAPES):
        strategy.run(all_reduce, args=(2,))
    # Shapes are known while the graph is built, or only when it runs.
    with pytest.raises(ValueError, match=BOTH_SHAPES):
        tf.function(reduce)(2)
    with pytest.raises(tf.errors.InvalidArgumentError, match=BOTH_SHAPES):
        tf.function(reduce)(tf.constant(2))


def test_different_dtypes_are_named(strategy):
    values = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(1, [tf.float32, tf.int32][context.replica_id_in_sync_group])
    )
    with pytest.raises(TypeError, match="replica 1.*expected float32 as on replica 0.*int32"):
        strategy.reduce("SUM", values, axis=None)


def _batches(strategy, distributed) -> list[list[list[int]]]:
    """Returns each replica's values in each step."""
    return [
        [value.numpy().tolist() for value in strategy.experimental_local_results(batch)]
        for batch in distributed
    ]


@pytest.mark.parametrize("fetch", [True, False])
def test_datasets_take_input_options(strategy, fetch):
    options = tf.distribute.InputOptions(experimental_fetch_to_device=fetch)
    rows = tf.data.Dataset.range(8).batch(4)
    distributed = strategy.experimental_distribute_dataset(rows, options)
    assert _batches(strategy, distributed) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


PER_REPLICA = tf.distribute.InputOptions(
    experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA
)


def test_a_dataset_cannot_be_given_to_each_replica(strategy):
    with pytest.raises(NotImplementedError, match="PER_REPLICA.*distribute_datasets_from_function"):
        strategy.experimental_distribute_dataset(tf.data.Dataset.range(8).batch(4), PER_REPLICA)


def test_a_function_makes_a_dataset_for_each_replica(strategy):
    distributed = strategy.distribute_datasets_from_function(
        lambda context: tf.data.Dataset.range(4).batch(2), PER_REPLICA
    )
    assert _batches(strategy, distributed) == [[[0, 1], [0, 1]], [[2, 3], [2, 3]]]


def _sum_of_numbers(strategy) -> np.ndarray:
    """Sums r + 1 over replicas r, by an all_reduce inside the replicas."""

    @tf.function
    def step():
        def reduce():
            context = tf.distribute.get_replica_context()
            number = tf.cast(context.replica_id_in_sync_group, tf.float32) + 1.0
            return context.all_reduce("SUM", tf.fill([3], number))

        return strategy.experimental_local_results(strategy.run(reduce))

    return np.stack(step())


def test_several_strategies_work_in_one_process():
    """TensorFlow's fail from the second one on (tensorflow/tensorflow#62790)."""
    strategies = [
        make_strategy("mirrored", 2),
        make_strategy("mirrored", DEVICES),
        make_strategy("central", 3),
        tfdist.MirroredStrategy(["CPU:3", "CPU:2"]),
        tfdist.OneDeviceStrategy("CPU:1"),
    ]
    for strategy in [*strategies, *reversed(strategies)]:
        replicas = strategy.num_replicas_in_sync
        expected = np.full([replicas, 3], replicas * (replicas + 1) / 2)
        np.testing.assert_array_equal(_sum_of_numbers(strategy), expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda: make_strategy("mirrored", 2),
        lambda: make_strategy("central", 2),
        lambda: tfdist.OneDeviceStrategy("CPU:0"),
    ],
    ids=["mirrored", "central", "one_device"],
)
def test_a_copy_is_a_working_strategy(make):
    """Estimator's RunConfig copies a strategy; TensorFlow's strategies cannot be pickled either."""
    strategy = copy.deepcopy(make())
    replicas = strategy.num_replicas_in_sync
    with strategy.scope():
        variable = tf.Variable(10.0, aggregation=tf.VariableAggregation.SUM)
    strategy.run(lambda: variable.assign_add(tf.constant(2.0)))
    assert variable.numpy() == 10.0 + 2.0 * replicas
    np.testing.assert_array_equal(_sum_of_numbers(strategy)[0], [replicas * (replicas + 1) / 2] * 3)
