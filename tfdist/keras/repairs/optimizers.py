"""Repairs of optimizers: branches, gradient accumulation, reduction, the scope they need."""

from __future__ import annotations

import types
from typing import Any

import tensorflow as tf
from keras import ops

from tfdist.data.strategies import workers_of
from tfdist.internals.keras_3 import TFOptimizer, base_optimizer, filter_empty_gradients
from tfdist.internals.tensorflow import (
    AggregatingVariable,
    DistributedVariable,
    regroup,
    select_replica,
)
from tfdist.keras.registry import repairs
from tfdist.keras.workers import replica_of_ours, replica_with_copies, replica_with_peers

_ISSUE = "tensorflow/tensorflow#27716"
# The classes of a variable that a strategy with several devices makes.
_SHARED = (DistributedVariable, AggregatingVariable)


class _With:
    """A module with another value of one name."""

    def __init__(self, module: types.ModuleType, name: str, value: object) -> None:
        self._module = module
        setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


@repairs(base_optimizer, "ops", issue=_ISSUE, until="3.15")
def branch_before_replicas(original):
    """`gradient_accumulation_steps` and `ema_overwrite_frequency` fail under every strategy.

    The optimizer branches on its step count in each replica, but a branch may not synchronize with
    the other replicas, which updating a variable does. The count is the same on all replicas: they
    synchronize first, branch once, and then each takes the branch.
    """
    return _With(original, "cond", _cond)


@repairs(base_optimizer, "backend", issue=_ISSUE, since="3.16")
def branch_of_the_backend_before_replicas(original):
    """As `branch_before_replicas`, since Keras 3.16, whose optimizer branches by its backend."""
    return _With(original, "ops", _With(original.ops, "cond", _cond))


def _cond(pred, true_fn, false_fn):
    replica = replica_of_ours()
    if replica is None:
        return ops.cond(pred, true_fn, false_fn)
    return replica.merge_call(_cond_of_all_replicas, args=(pred, true_fn, false_fn))


def _cond_of_all_replicas(strategy, pred, true_fn, false_fn):
    def take(branch):
        results = strategy.extended.call_for_each_replica(
            lambda of_replica: of_replica(), args=(branch,)
        )
        return [select_replica(i, results) for i in range(len(predicates))]

    predicates = strategy.experimental_local_results(pred)
    return regroup(ops.cond(predicates[0], lambda: take(true_fn), lambda: take(false_fn)))


@repairs(TFOptimizer, "_backend_increment_gradient_accumulators")
def accumulate_all_gradients(original, self, grads, acc_grads):
    """Where variables exist once, `gradient_accumulation_steps` keeps one replica's gradients.

    Keras adds each replica's gradients to its own copy of the accumulators. A single copy gets
    their mean. Every replica adds that to its last gradients before these are summed.
    """
    replica = replica_with_copies()
    if replica is not None and not isinstance(acc_grads[0].value, DistributedVariable):
        grads = replica.all_reduce("MEAN", grads)
    return original(self, grads, acc_grads)


@repairs(TFOptimizer, "_all_reduce_sum_gradients")
def tell_whose_gradients_are_reduced(original, self, grads_and_vars):
    """Keras 3 reduces gradients without naming their variables, which tf_keras does.

    The state of compression belongs to a variable.
    """
    replica = replica_with_peers()
    if replica is None or workers_of(replica.strategy) is None:
        return original(self, grads_and_vars)
    pairs = list(grads_and_vars)
    reduced = iter(replica.merge_call(_sum, args=(filter_empty_gradients(pairs),)))
    return [(None if g is None else next(reduced), v) for g, v in pairs]


def _sum(strategy, grads_and_vars):
    return strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, grads_and_vars)


@repairs(base_optimizer.BaseOptimizer, "apply")
def refuse_variables_of_no_strategy(original, self, grads, trainable_variables=None):
    """An optimizer that was built outside the scope trains wrongly without an error.

    Its slots and its step count are then plain variables, which every replica updates.
    """
    replica = replica_with_peers()
    # Alone on its worker, a replica may update plain variables: all do the same.
    if replica is not None and len(replica.strategy.extended.worker_devices) > 1:
        plain = [v.path for v in self.variables if not isinstance(v.value, _SHARED)]
        if plain:
            raise ValueError(
                f"optimizer {self.name!r}: expected variables of {replica.strategy!r}, but "
                f"{plain[0]!r} was made outside its scope, so that every replica would update "
                "it. Make and build the optimizer in `with strategy.scope():`."
            )
    return original(self, grads, trainable_variables)
