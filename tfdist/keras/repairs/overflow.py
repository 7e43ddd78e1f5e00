"""Repair of `LossScaleOptimizer`: all replicas skip a step together."""

from __future__ import annotations

import tensorflow as tf
from keras.optimizers import LossScaleOptimizer

from tfdist.keras.registry import repairs
from tfdist.keras.workers import local_updates, replica_with_peers


@repairs(LossScaleOptimizer, "check_finite", issue="keras-team/keras#18666")
def agree_on_overflow(original, self, grads):
    """`LossScaleOptimizer` looks for overflow in the gradients of one replica, before the sum.

    A worker whose own gradients are not finite then skips the step in which the others wait for
    it. Here all skip the step when one has to, unless each worker trains alone. Without a strategy
    the inner optimizer may reduce over ranks, as `tfdist.DistributedOptimizer` does: its method
    `is_finite_on_all_ranks` then decides.
    """
    finite = original(self, grads)
    replica = replica_with_peers()
    if replica is not None and local_updates() is None:
        finite = replica.all_reduce("SUM", tf.cast(tf.logical_not(finite), tf.int32)) == 0
    agree = getattr(self.inner_optimizer, "is_finite_on_all_ranks", None)
    return finite if agree is None else agree(finite)
