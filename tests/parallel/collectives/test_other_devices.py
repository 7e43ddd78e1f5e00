"""Collectives in the scope of a device that is not the CPU, without soft placement.

The device is XLA_CPU, which TensorFlow can make on every machine.
"""

from __future__ import annotations

import collections

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import kernels, op_def_registry  # no public list of kernels

from support.processes.ranks import on_ranks
from tfdist import ops
from tfdist.config.cluster import Cluster
from tfdist.job import process
from tfdist.ops import library
from tfdist.ops.collectives.compressed import cast16_all_reduce
from tfdist.ops.collectives.world import world

DEVICE = "/device:XLA_CPU:0"
ENABLED = {"TF_XLA_FLAGS": "--tf_xla_enable_xla_devices"}
INTO_VARIABLES = "TfdistAllGatherInto"  # they must be on the CPU
LARGE = 1 << 18  # elements of a bucket's block, 1 MB


def inputs(rank: int) -> tuple[tf.Tensor, tf.IndexedSlices, tf.Tensor]:
    """Returns two rows, row `rank` of a table of three, and one block of a bucket."""
    factor = rank + 1.0
    value = tf.constant([[1.0, 2.0], [3.0, 4.0]]) * factor
    table_row = tf.IndexedSlices(value[:1], tf.constant([rank]), tf.constant([3, 2]))
    return value, table_row, tf.fill([LARGE], factor)


def call_all(value: tf.Tensor, table_row: tf.IndexedSlices, block: tf.Tensor) -> dict:
    """Calls each collective on the device."""
    communicator = process.current.join(Cluster.from_environment()).communicator
    with tf.device(DEVICE):
        with tf.GradientTape() as tape:
            tape.watch(value)
            total = ops.all_reduce(value, communicator)
        results = {
            "all_reduce": total,
            "next_op": total + 1.0,
            "gradient": tape.gradient(total, value),
            "rows": tf.convert_to_tensor(ops.all_reduce(table_row, communicator)),
            "cast16": cast16_all_reduce([value], communicator, tf.float16)[0],
            "buckets": ops.fused_all_reduce([block] * 6, communicator, bytes_per_pack="auto")[5][0],
            "reduce": ops.reduce(value, communicator),
            "reduce_scatter": ops.reduce_scatter(value, communicator),
            "broadcast": ops.broadcast(value, communicator, 1),
            "all_gather": ops.all_gather(value, communicator),
            "gather": ops.gather(value, communicator),
            "scatter": ops.scatter(value, communicator, 1),
            "all_to_all": ops.all_to_all(value, communicator),
            "world": tf.stack(world(communicator)),
        }
        ops.barrier(communicator)
        return results | {"join": tf.identity(ops.join(communicator)) >= 0}


def expected(rank: int) -> dict:
    """Returns the results of `call_all` on two ranks."""
    of_rank_0 = np.array([[1.0, 2.0], [3.0, 4.0]])
    of_rank_1 = 2 * of_rank_0
    both = np.concatenate([of_rank_0, of_rank_1])
    return {
        "all_reduce": 3 * of_rank_0,
        "next_op": 3 * of_rank_0 + 1,
        "gradient": np.full([2, 2], 2.0),
        "rows": [[1, 2], [2, 4], [0, 0]],
        "cast16": 3 * of_rank_0,
        "buckets": 3,
        "reduce": 3 * of_rank_0 if rank == 0 else np.zeros([2, 2]),
        "reduce_scatter": 3 * of_rank_0[rank : rank + 1],
        "broadcast": of_rank_1,
        "all_gather": both,
        "gather": both if rank == 0 else np.zeros([0, 2]),
        "scatter": of_rank_1[rank : rank + 1],
        "all_to_all": both[rank::2],
        "world": [rank, 2],
        "join": True,
    }


@on_ranks(2, env=ENABLED)
def test_all_collectives(ctx):
    tf.config.set_soft_device_placement(False)
    with tf.device(DEVICE):
        arguments = inputs(ctx.rank)
    assert arguments[0].device.endswith(DEVICE)
    for call in (call_all, tf.function(call_all)):
        results = call(*arguments)
        assert results.keys() == expected(ctx.rank).keys()
        for name, value in expected(ctx.rank).items():
            np.testing.assert_array_equal(results[name], value, name)


def test_kernels_of_other_devices_have_all_tensors_in_host_memory():
    library.graph_ops()
    priorities = collections.defaultdict(dict)
    for kernel in kernels.get_all_registered_kernels().kernel:
        op = op_def_registry.get(kernel.op) if kernel.op.startswith("Tfdist") else None
        if op is None or "communicator" not in {attr.name for attr in op.attr}:
            continue
        priorities[kernel.op][kernel.device_type] = kernel.priority
        if kernel.op == INTO_VARIABLES:
            continue
        tensors = {tensor.name for tensor in [*op.input_arg, *op.output_arg]}
        assert set(kernel.host_memory_arg) == tensors, kernel.op
    assert priorities.pop(INTO_VARIABLES) == {"CPU": 0}
    assert "TfdistAllReduce" in priorities
    # An op without a device belongs to the CPU, also on a machine with a GPU.
    assert priorities == dict.fromkeys(priorities, {"CPU": 1, "DEFAULT": 0})
