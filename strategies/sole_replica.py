"""The only replica of a worker, which runs in the thread that asks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.impl import api as autograph
from tensorflow.python.distribute.distribute_utils import regroup, select_replica
from tensorflow.python.distribute.reduce_util import ReduceOp


def can_run(fn: Callable) -> bool:
    """Whether `run` may call `fn` here.

    Eager code has no use for it. A tf.function is for TensorFlow to take apart first.
    """
    return tf.inside_function() and not isinstance(fn, tf.types.experimental.GenericFunction)


def run(extended: Any, fn: Callable, args: Any, kwargs: Any) -> Any:
    """Calls `fn` as the only replica of this worker.

    Args:
      extended: of the strategy whose replica it is.
      fn: a Python function.
      args: its arguments; of what is distributed it gets this replica's part.
      kwargs: as `args`.
    """
    fn = autograph.tf_convert(fn, ag_ctx.control_status_ctx())
    replica_id = extended._get_replica_id_in_sync_group(0)
    device = extended.worker_devices[0]
    with SoleReplica(extended._container_strategy(), replica_id), tf.device(device):
        return regroup((fn(*select_replica(0, args), **select_replica(0, kwargs)),))


class SoleReplica(tf.distribute.ReplicaContext):
    """Leaves the gradient of a reduction to our ops (tfdist/ops/gradients.py).

    For the gradient's sake TensorFlow's own context puts all results and all arguments of a
    reduction through a single op, which has two costs. No variable is updated before all gradients
    of all variables have been reduced, and the arguments live until then, so that no sum can take
    the memory of what was added up.
    """

    def all_reduce(self, reduce_op, value, options=None):
        """As `tf.distribute.ReplicaContext.all_reduce`."""
        values = tf.nest.flatten(value)
        if not values or tf.executing_eagerly():
            return super().all_reduce(reduce_op, value, options)
        if isinstance(reduce_op, str):
            reduce_op = ReduceOp(reduce_op.upper())
        values = [v if isinstance(v, tf.IndexedSlices) else tf.convert_to_tensor(v) for v in values]

        def reduce(strategy):
            pairs = [(v, v) for v in values]
            return strategy.extended.batch_reduce_to(reduce_op, pairs, options)

        return tf.nest.pack_sequence_as(value, self.merge_call(reduce))

    def _merge_call(self, fn, args, kwargs):
        return select_replica(0, super()._merge_call(fn, args, kwargs))
