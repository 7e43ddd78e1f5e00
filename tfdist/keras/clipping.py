"""Clipping of the gradients' sum, as one process with the whole batch clips its gradient."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from keras.src.backend import Variable
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.optimizers.base_optimizer import BaseOptimizer

from tfdist.keras.table_gradients import table_of
from tfdist.keras.workers import replica_with_peers
from tfdist.strategies._variables import table_variable

_thread = threading.local()


def clips(optimizer: Any) -> bool:
    """Whether an optimizer, of Keras 3 or tf_keras, clips gradients."""
    limits = (optimizer.clipnorm, optimizer.global_clipnorm, optimizer.clipvalue)
    return any(limit is not None and limit > 0 for limit in limits)


def are_reduced() -> bool:
    """Whether the gradients that this thread's optimizer works on are sums already."""
    return getattr(_thread, "are_reduced", False)


def clip_sums() -> None:
    """Not a defect of Keras: it clips what each replica found, and sums afterwards.

    The step then depends on the number of replicas. A strategy with `clip="sum"` reduces first.
    """
    clip = BaseOptimizer._clip_gradients
    update = TFOptimizer._backend_update_step

    @functools.wraps(clip)
    def _clip_gradients(self, grads):
        return grads if _clips_sums(self) else clip(self, grads)

    @functools.wraps(update)
    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        if not _clips_sums(self):
            return update(self, grads, trainable_variables, learning_rate)
        sums = _summed(self, grads, trainable_variables)
        clipped = clip(self, sums)
        with _reduced():
            return update(self, clipped, trainable_variables, learning_rate)

    BaseOptimizer._clip_gradients = _clip_gradients
    TFOptimizer._backend_update_step = _backend_update_step


def _clips_sums(optimizer: BaseOptimizer) -> bool:
    if not clips(optimizer):
        return False
    replica = replica_with_peers()
    return replica is not None and replica.strategy.extended.clip == "sum"


def _summed(optimizer: TFOptimizer, grads: list, variables: list) -> list:
    """The gradients' sums over all replicas; of tables, of which `optimizer` has rows, too."""
    sums = list(grads)
    dense = [i for i, variable in enumerate(variables) if table_of(variable) is None]
    if dense:
        pairs = [(grads[i], _of_tensorflow(variables[i])) for i in dense]
        for i, (total, _) in zip(dense, optimizer._all_reduce_sum_gradients(pairs), strict=True):
            sums[i] = total
    for i, variable in enumerate(variables):
        table = table_of(variable)
        if table is not None:
            sums[i] = table_variable.sum_over_replicas(grads[i], table)
    return sums


def _of_tensorflow(variable: Any) -> tf.Variable:
    return variable.value if isinstance(variable, Variable) else variable


@contextlib.contextmanager
def _reduced() -> Iterator[None]:
    """Within, this thread's gradients are sums already."""
    _thread.are_reduced = True
    try:
        yield
    finally:
        _thread.are_reduced = False
