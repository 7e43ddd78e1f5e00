"""How gradients of embedding tables pass through the optimizers that a model_fn uses.

Those of TensorFlow 1, and tf_keras's before 2.11. The rows go to the servers, and the optimizer
gets what is dense. (Later ones: `tfdist.keras.legacy_tables`.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tfdist.strategies import table_variable
from tfdist.strategies.table_variable import TableVariable

v1 = tf.compat.v1


@functools.cache
def send_rows_to_servers() -> None:
    """Lets these optimizers leave the rows of tables to the servers."""
    from tf_keras.optimizers import legacy

    _leave_out_rows(v1.train.Optimizer, _of_tensorflow_1)
    _leave_out_rows(legacy.Optimizer, _of_keras)


def _leave_out_rows(kind: type, steps_of: Callable) -> None:
    original = kind.apply_gradients

    @functools.wraps(original)
    def apply_gradients(self, grads_and_vars: Iterable[tuple], *args, **kwargs):
        pairs = list(grads_and_vars)
        of_tables = [(g, v) for g, v in pairs if isinstance(v, TableVariable) and g is not None]
        dense = [(g, v) for g, v in pairs if not isinstance(v, TableVariable)]
        if not of_tables:
            return original(self, dense, *args, **kwargs)
        steps, learning_rate = steps_of(self, *args, **kwargs)
        with tf.control_dependencies([_stage(of_tables, steps, learning_rate)]):
            if any(g is not None for g, _ in dense):
                return original(self, dense, *args, **kwargs)
            return steps.assign_add(1, read_value=False)

    kind.apply_gradients = apply_gradients


def _stage(pairs: list[tuple], steps: tf.Variable, learning_rate: Any) -> tf.Operation:
    gradients = []
    for gradient, table in pairs:
        ids, rows = table_variable.flat_rows(gradient)
        table.gradient_ids.set(ids)
        gradients.append((rows, table))
    return table_variable.stage(gradients, steps, learning_rate)


def _of_tensorflow_1(optimizer: Any, global_step: Any = None, name: Any = None) -> tuple:
    rate = getattr(optimizer, "_learning_rate", None)
    rate = getattr(optimizer, "_lr", None) if rate is None else rate
    steps = v1.train.get_or_create_global_step() if global_step is None else global_step
    return steps, rate() if callable(rate) else rate


def _of_keras(optimizer: Any, *args: Any, **kwargs: Any) -> tuple:
    return optimizer.iterations, optimizer._decayed_lr(tf.float32)
