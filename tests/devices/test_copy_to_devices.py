"""Copies of lists of tensors between the devices of a process."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.ops.local.copy_to_devices import copy_to_devices
from tfdist.ops.local.local_reduce import local_reduce


def values() -> list[tf.Tensor]:
    with tf.device("CPU:1"):
        return [tf.identity(v) for v in (1.5, [[2, 3]], np.zeros([0, 4]), "text", [True, False])]


def assert_values(received: list[tf.Tensor]) -> None:
    for value, expected in zip(received, values(), strict=True):
        assert value.dtype == expected.dtype
        np.testing.assert_array_equal(value, expected)


def address(value: tf.Tensor) -> int:
    return np.asarray(memoryview(value)).ctypes.data


def test_every_device_gets_the_same_memory():
    tensors = [*values(), tf.range(1000)]
    lists = copy_to_devices(tensors, ["CPU:0", "CPU:3"])
    for device, received in zip((0, 3), lists, strict=True):
        assert_values(received[:-1])
        assert all(value.device.endswith(f"CPU:{device}") for value in received)
        assert address(received[-1]) == address(tensors[-1])


@pytest.mark.parametrize("count", [0, 1])
def test_lists_that_need_no_bundle(count):
    (received,) = copy_to_devices([tf.constant(7.0)] * count, ["CPU:2"])
    assert [(float(v), v.device[-5:]) for v in received] == [(7.0, "CPU:2")] * count


def test_in_a_function_devices_and_shapes_are_known():
    @tf.function
    def step(a):
        with tf.device("CPU:1"):
            tensors = [a * 2.0, tf.constant([1, 2]), *values()]
        with tf.device("CPU:2"):
            here, there = copy_to_devices(tensors, ["", "CPU:0"])
            assert {v.device[-5:] for v in here} == {"CPU:2"}
            assert {v.device[-5:] for v in there} == {"CPU:0"}
            assert [v.shape for v in here] == [v.shape for v in tensors]
            return here, [tf.identity(v) for v in there]

    for _ in range(2):
        for received in step(tf.constant([3.0])):
            np.testing.assert_array_equal(received[0], [6.0])
            assert_values(received[2:])


@pytest.mark.parametrize("replicas", [2, 4])
def test_replicas_of_several_devices_are_reduced_on_the_current_one(replicas):
    @tf.function
    def step(x):
        lists = []
        for r in range(replicas):
            with tf.device(f"CPU:{r}"):
                lists.append([x * (r + 1.0), tf.cast(x, tf.int32) * 10**r])
        with tf.device("CPU:1"):
            sums = local_reduce(lists)
        assert {v.device[-5:] for v in sums} == {"CPU:1"}
        return sums

    products, integers = step(tf.range(50.0))
    np.testing.assert_array_equal(products, np.arange(50.0) * replicas * (replicas + 1) / 2)
    np.testing.assert_array_equal(integers, np.arange(50) * int("1" * replicas))


def test_a_list_is_sent_once_to_each_device():
    with tf.Graph().as_default():
        with tf.device("CPU:1"):
            fed = tf.compat.v1.placeholder(tf.float32, [3])
            tensors = [fed * float(i) for i in range(20)]
        lists = copy_to_devices(tensors, ["CPU:0", "CPU:2"])
        totals = []
        for device, received in zip(("CPU:0", "CPU:2"), lists, strict=True):
            with tf.device(device):
                totals.append(tf.add_n(received))
        trace = tf.compat.v1.RunMetadata()
        options = tf.compat.v1.RunOptions(output_partition_graphs=True)
        with tf.compat.v1.Session() as session:
            results = session.run(totals, {fed: [1, 2, 3]}, options, trace)
    np.testing.assert_array_equal(results, [[190, 380, 570]] * 2)
    received = [n for graph in trace.partition_graphs for n in graph.node if n.op == "_Recv"]
    bundles = [n for n in received if n.attr["tensor_type"].type == tf.variant.as_datatype_enum]
    floats = [n for n in received if n.attr["tensor_type"].type == tf.float32.as_datatype_enum]
    assert len(bundles) == 2 and len(floats) <= 3  # the fed and the fetched tensors
