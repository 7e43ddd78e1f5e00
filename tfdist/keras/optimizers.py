"""Repairs of optimizers: loss scaling, gradient accumulation, moving averages."""

from __future__ import annotations

import functools

import tensorflow as tf
from keras import ops
from keras.optimizers import LossScaleOptimizer
from keras.src.backend.tensorflow.optimizer import TFOptimizer, filter_empty_gradients
from keras.src.optimizers import base_optimizer
from tensorflow.python.distribute.distribute_utils import regroup, select_replica
from tensorflow.python.distribute.ps_values import AggregatingVariable
from tensorflow.python.distribute.values import DistributedVariable

from tfdist import ops as collectives
from tfdist.job import process
from tfdist.keras import clipping
from tfdist.keras.workers import replica_of_ours, replica_with_copies, replica_with_peers

# What a strategy with several devices makes of a variable.
_SHARED = (DistributedVariable, AggregatingVariable)


def agree_on_overflow() -> None:
    """keras-team/keras#18666: `LossScaleOptimizer` looks for overflow in its own gradients.

    It does so before they are summed over the workers, so a worker whose own are not finite leaves
    out the step in which the others wait for it. All leave the step out when one has to.
    """
    original = LossScaleOptimizer.check_finite

    @functools.wraps(original)
    def check_finite(self, grads):
        finite = original(self, grads)
        replica = replica_with_peers()
        if replica is None:
            return finite
        return replica.all_reduce("SUM", tf.cast(tf.logical_not(finite), tf.int32)) == 0

    LossScaleOptimizer.check_finite = check_finite


@functools.cache
def agree_on_overflow_of_ranks() -> None:
    """The same where there is no strategy, and the optimizer inside reduces over the ranks."""
    original = LossScaleOptimizer.check_finite

    @functools.wraps(original)
    def check_finite(self, grads):
        finite = original(self, grads)
        if not getattr(self.inner_optimizer, "reduces_over_ranks", False) or process.size() == 1:
            return finite
        overflows = tf.cast(tf.logical_not(finite), tf.int32)
        return collectives.all_reduce(overflows, label="has a gradient overflown") == 0

    LossScaleOptimizer.check_finite = check_finite


def branch_before_replicas() -> None:
    """`gradient_accumulation_steps` and `ema_overwrite_frequency` fail under every strategy.

    The optimizer branches on its step count in each replica, but a branch may not meet the other
    replicas (tensorflow/tensorflow#27716), as updating a variable does. The count is the same on
    all: they meet first, branch once, and take the branch each.
    """

    def cond(pred, true_fn, false_fn):
        replica = replica_of_ours()
        if replica is None:
            return ops.cond(pred, true_fn, false_fn)
        return replica.merge_call(_cond_of_all_replicas, args=(pred, true_fn, false_fn))

    class OpsWithCond:
        """`keras.ops`, for `base_optimizer` alone, with another `cond`."""

        def __getattr__(self, name):
            return cond if name == "cond" else getattr(ops, name)

    base_optimizer.ops = OpsWithCond()


def _cond_of_all_replicas(strategy, pred, true_fn, false_fn):
    def take(branch):
        results = strategy.extended.call_for_each_replica(
            lambda of_replica: of_replica(), args=(branch,)
        )
        return [select_replica(i, results) for i in range(len(predicates))]

    predicates = strategy.experimental_local_results(pred)
    return regroup(ops.cond(predicates[0], lambda: take(true_fn), lambda: take(false_fn)))


def accumulate_all_gradients() -> None:
    """Where variables exist once, `gradient_accumulation_steps` keeps one replica's gradients.

    Keras adds each replica's gradients to its own copy of the accumulators. A single copy gets
    their mean, which every replica adds to its last gradients before these are summed.
    """
    original = TFOptimizer._backend_increment_gradient_accumulators

    @functools.wraps(original)
    def _backend_increment_gradient_accumulators(self, grads, acc_grads):
        replica = replica_with_copies()
        if replica is not None and not isinstance(acc_grads[0].value, DistributedVariable):
            grads = replica.all_reduce("MEAN", grads)
        return original(self, grads, acc_grads)

    TFOptimizer._backend_increment_gradient_accumulators = _backend_increment_gradient_accumulators


def tell_whose_gradients_are_reduced() -> None:
    """Keras 3 reduces gradients without saying whose they are, as tf_keras does.

    What compression keeps of a gradient is kept for its variable. And what was reduced before it
    was clipped is not reduced again.
    """
    original = TFOptimizer._all_reduce_sum_gradients

    @functools.wraps(original)
    def _all_reduce_sum_gradients(self, grads_and_vars):
        if clipping.are_reduced():
            return list(grads_and_vars)
        replica = replica_with_peers()
        if replica is None or getattr(replica.strategy, "communicator", None) is None:
            return original(self, grads_and_vars)
        pairs = list(grads_and_vars)
        reduced = iter(replica.merge_call(_sum, args=(filter_empty_gradients(pairs),)))
        return [(None if g is None else next(reduced), v) for g, v in pairs]

    TFOptimizer._all_reduce_sum_gradients = _all_reduce_sum_gradients


def _sum(strategy, grads_and_vars):
    return strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, grads_and_vars)


def refuse_variables_of_no_strategy() -> None:
    """An optimizer built outside the scope trains wrongly without a word.

    Its slots and its step count are then plain variables, which every replica updates.
    """
    original = base_optimizer.BaseOptimizer.apply

    @functools.wraps(original)
    def apply(self, grads, trainable_variables=None):
        replica = replica_with_peers()
        # Alone on its worker, a replica may update plain variables: all do so alike.
        if replica is not None and len(replica.strategy.extended.worker_devices) > 1:
            plain = [v.path for v in self.variables if not isinstance(v.value, _SHARED)]
            if plain:
                raise ValueError(
                    f"optimizer {self.name!r}: expected variables of {replica.strategy!r}, but "
                    f"{plain[0]!r} was made outside its scope, so that every replica would update "
                    "it. Make and build the optimizer in `with strategy.scope():`."
                )
        return original(self, grads, trainable_variables)

    base_optimizer.BaseOptimizer.apply = apply
