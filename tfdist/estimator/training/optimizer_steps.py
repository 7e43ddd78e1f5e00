"""Lets the parameter servers do what they can of the steps of a model_fn's optimizers.

Rows of embedding tables go there always, what is dense where the servers know the optimizer; the
optimizer itself gets the rest.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import tensorflow as tf
from tf_keras.optimizers import legacy

from tfdist.estimator.training import server_optimizers
from tfdist.estimator.training.optimizer_calls import CallOfTensorFlow1, CallOfTfKeras
from tfdist.strategies._variables import table_variable
from tfdist.strategies._variables.table_variable import TableVariable


@functools.cache
def send_steps_to_servers() -> None:
    """Changes `apply_gradients` of both kinds of optimizers."""
    _send_steps(tf.compat.v1.train.Optimizer, CallOfTensorFlow1)
    _send_steps(legacy.Optimizer, CallOfTfKeras)


def _send_steps(optimizer: type, call_of: type) -> None:
    original = optimizer.apply_gradients

    @functools.wraps(original)
    def apply_gradients(self, grads_and_vars: Iterable[tuple], *args, **kwargs):
        pairs = list(grads_and_vars)
        of_tables = [(g, v) for g, v in pairs if isinstance(v, TableVariable) and g is not None]
        dense = [(g, v) for g, v in pairs if not isinstance(v, TableVariable)]
        with_gradient = [(g, v) for g, v in dense if g is not None]
        call = call_of(self, *args, **kwargs)
        # First of all: what is asked of the optimizer later may replace its numbers by variables.
        on_servers = server_optimizers.decide_for(call, with_gradient)
        with tf.control_dependencies([_stage(of_tables, call)] if of_tables else []):
            if on_servers is not None:
                return on_servers.apply()
            if with_gradient or not of_tables:
                return original(self, dense, *args, **kwargs)
            return call.counter.assign_add(1, read_value=False)

    optimizer.apply_gradients = apply_gradients


def _stage(pairs: list[tuple], call: Any) -> tf.Operation:
    gradients = []
    for gradient, table in pairs:
        ids, rows = table_variable.flat_rows(gradient)
        table.gradient_ids.set(ids)
        gradients.append((rows, table))
    return table_variable.stage(gradients, call.counter, call.learning_rate())
