"""Repairs of optimizers: `LossScaleOptimizer`."""

from __future__ import annotations

import functools

import tensorflow as tf
from keras.optimizers import LossScaleOptimizer

from tfdist.keras.workers import is_ours


def agree_on_overflow() -> None:
    """keras-team/keras#18666: `LossScaleOptimizer` looks for overflow in its own gradients.

    It does so before they are summed over the workers, so a worker whose own are not finite leaves
    out the step in which the others wait for it. All leave the step out when one has to.
    """
    original = LossScaleOptimizer.check_finite

    @functools.wraps(original)
    def check_finite(self, grads):
        finite = original(self, grads)
        replica = tf.distribute.get_replica_context()
        if replica is None or not is_ours(replica.strategy):
            return finite
        return replica.all_reduce("SUM", tf.cast(tf.logical_not(finite), tf.int32)) == 0

    LossScaleOptimizer.check_finite = check_finite
