"""How gradients of embedding tables pass through tf_keras's optimizers: see `table_gradients`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable

import tensorflow as tf

from tfdist.keras import clipping
from tfdist.keras.workers import replica_with_peers
from tfdist.strategies._variables import table_variable
from tfdist.strategies._variables.table_variable import TableVariable


def send_rows_to_servers() -> None:
    """Lets tf_keras's optimizers leave rows to the servers, if this process uses tf_keras."""
    if "tf_keras" in sys.modules:
        _send_rows_to_servers()


@functools.cache
def _send_rows_to_servers() -> None:
    from tf_keras.optimizers import Optimizer

    _separate_ids(Optimizer)
    _keep_from_all_reduce(Optimizer)
    _stage_rows(Optimizer)
    for name in (
        "_apply_weight_decay",
        "_update_model_variables_moving_average",
        "_overwrite_model_variables_with_average_value",
    ):
        _with_dense_variables(Optimizer, name)


def _separate_ids(optimizer: type) -> None:
    original = optimizer.apply_gradients

    @functools.wraps(original)
    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        pairs = [(_rows_of(g, v), v) for g, v in grads_and_vars]
        return original(self, pairs, *args, **kwargs)

    optimizer.apply_gradients = apply_gradients


def _rows_of(gradient, variable):
    if not isinstance(variable, TableVariable) or not isinstance(gradient, tf.IndexedSlices):
        return gradient
    ids, rows = table_variable.unique_flat_rows(gradient)
    variable.gradient_ids.set(ids)
    return rows


def _keep_from_all_reduce(optimizer: type) -> None:
    original = optimizer.aggregate_gradients

    @functools.wraps(original)
    def aggregate_gradients(self, grads_and_vars):
        dense, of_tables = _parted(grads_and_vars)
        # What clips them clips sums, as of dense variables.
        if clipping.clips(self) and replica_with_peers() is not None:
            of_tables = [
                (None if g is None else table_variable.sum_over_replicas(_rows_of(g, t), t), t)
                for g, t in of_tables
            ]
        return [*(original(self, dense) if dense else []), *of_tables]

    optimizer.aggregate_gradients = aggregate_gradients


def _stage_rows(optimizer: type) -> None:
    original = optimizer._internal_apply_gradients

    @functools.wraps(original)
    def _internal_apply_gradients(self, grads_and_vars):
        dense, of_tables = _parted(grads_and_vars)
        of_tables = [(g, t) for g, t in of_tables if g is not None]
        if of_tables:
            table_variable.stage(of_tables, self.iterations, self.learning_rate)
        return original(self, dense)

    optimizer._internal_apply_gradients = _internal_apply_gradients


def _with_dense_variables(optimizer: type, name: str) -> None:
    original = getattr(optimizer, name)

    @functools.wraps(original)
    def of_dense(self, variables):
        return original(self, [v for v in variables if not isinstance(v, TableVariable)])

    setattr(optimizer, name, of_dense)


def _parted(grads_and_vars: Iterable[tuple]) -> tuple[list, list]:
    dense, of_tables = [], []
    for gradient, variable in grads_and_vars:
        is_table = isinstance(variable, TableVariable)
        (of_tables if is_table else dense).append((gradient, variable))
    return dense, of_tables
