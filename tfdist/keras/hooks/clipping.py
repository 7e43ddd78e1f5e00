"""Clipping of the gradients' sum, as one process with the whole batch clips its gradient."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import tensorflow as tf

from tfdist._types import KerasOptimizer, KerasVariable
from tfdist.internals.keras_3 import BaseOptimizer, TFOptimizer, Variable
from tfdist.keras.hooks.table_gradients import table_of
from tfdist.keras.registry import hooks
from tfdist.keras.strategies import shards_of
from tfdist.keras.workers import replica_with_peers

_thread = threading.local()


def clips(optimizer: KerasOptimizer) -> bool:
    """Whether an optimizer, of Keras 3 or tf_keras, clips gradients."""
    limits = (optimizer.clipnorm, optimizer.global_clipnorm, optimizer.clipvalue)
    return any(limit is not None and limit > 0 for limit in limits)


# Keras's own, which clips a replica's gradients.
_clip = BaseOptimizer._clip_gradients


@hooks(BaseOptimizer, "_clip_gradients")
def leave_to_the_step(original, self, grads):
    """Gradients of a replica are not clipped where their sum is."""
    return grads if _clips_sums(self) else original(self, grads)


@hooks(TFOptimizer, "_backend_update_step")
def clip_sums(original, self, grads, trainable_variables, learning_rate):
    """With `clip="sum"` a strategy's replicas clip the sum of their gradients.

    Keras clips each replica's gradients and sums them afterwards, so that the step depends on the
    number of replicas.
    """
    if not _clips_sums(self):
        return original(self, grads, trainable_variables, learning_rate)
    clipped = _clip(self, _summed(self, grads, trainable_variables))
    with _reduced():
        return original(self, clipped, trainable_variables, learning_rate)


@hooks(TFOptimizer, "_all_reduce_sum_gradients")
def reduce_once(original, self, grads_and_vars):
    """Gradients that were summed before clipping are not summed again."""
    if getattr(_thread, "are_reduced", False):
        return list(grads_and_vars)
    return original(self, grads_and_vars)


def _clips_sums(optimizer: BaseOptimizer) -> bool:
    if not clips(optimizer):
        return False
    replica = replica_with_peers()
    if replica is None or shards_of(replica.strategy.extended) is not None:
        return False  # sharded_optimizers clips parts
    return replica.strategy.extended.clip == "sum"


def _summed(optimizer: TFOptimizer, grads: list, variables: list) -> list:
    """The gradients' sums over all replicas, including tables' rows."""
    sums = list(grads)
    dense = [i for i, variable in enumerate(variables) if table_of(variable) is None]
    if dense:
        pairs = [(grads[i], _of_tensorflow(variables[i])) for i in dense]
        for i, (total, _) in zip(dense, optimizer._all_reduce_sum_gradients(pairs), strict=True):
            sums[i] = total
    for i, variable in enumerate(variables):
        table = table_of(variable)
        if table is not None:
            sums[i] = table.sum_over_replicas(grads[i])
    return sums


def _of_tensorflow(variable: KerasVariable) -> tf.Variable:
    return variable.value if isinstance(variable, Variable) else variable


@contextlib.contextmanager
def _reduced() -> Iterator[None]:
    """Marks this thread's gradients as sums for the duration of a `with` block."""
    _thread.are_reduced = True
    try:
        yield
    finally:
        _thread.are_reduced = False
