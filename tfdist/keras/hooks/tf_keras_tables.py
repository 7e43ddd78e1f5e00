"""How gradients of embedding tables pass through tf_keras's optimizers: see `table_gradients`."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf
from tf_keras.optimizers import Optimizer

from tfdist.keras.hooks import clipping
from tfdist.keras.registry import hooks
from tfdist.keras.workers import is_table, replica_with_peers
from tfdist.ps.row_gradients import unique_flat_rows


@hooks(Optimizer, "apply_gradients")
def separate_ids(original, self, grads_and_vars, *args, **kwargs):
    """Of a table's gradient an optimizer gets the rows; the ids stay with the table."""
    pairs = [(_rows_of(g, v), v) for g, v in grads_and_vars]
    return original(self, pairs, *args, **kwargs)


def _rows_of(gradient, variable):
    if not is_table(variable) or not isinstance(gradient, tf.IndexedSlices):
        return gradient
    ids, rows = unique_flat_rows(gradient)
    variable.gradient_ids.set(ids)
    return rows


@hooks(Optimizer, "aggregate_gradients")
def keep_from_all_reduce(original, self, grads_and_vars):
    """Gradients of tables are summed by the servers, not over the replicas."""
    dense, of_tables = _partition(grads_and_vars)
    # An optimizer that clips needs the sums, as for dense variables.
    if clipping.clips(self) and replica_with_peers() is not None:
        of_tables = [
            (None if g is None else t.sum_over_replicas(_rows_of(g, t)), t) for g, t in of_tables
        ]
    return [*(original(self, dense) if dense else []), *of_tables]


@hooks(Optimizer, "_internal_apply_gradients")
def stage_rows(original, self, grads_and_vars):
    """A step's gradients of tables are staged for the push to the servers."""
    dense, of_tables = _partition(grads_and_vars)
    of_tables = [(g, t) for g, t in of_tables if g is not None]
    if of_tables:
        _, table = of_tables[0]
        table.stage(of_tables, self.iterations, self.learning_rate)
    return original(self, dense)


@hooks(Optimizer, "_apply_weight_decay")
def leave_out_of_weight_decay(original, self, variables):
    """Weight decay leaves tables out."""
    return original(self, _dense(variables))


@hooks(Optimizer, "_update_model_variables_moving_average")
@hooks(Optimizer, "_overwrite_model_variables_with_average_value")
def leave_out_of_moving_averages(original, self, var_list):
    """Moving averages leave tables out."""
    return original(self, _dense(var_list))


def _dense(variables: Iterable) -> list:
    return [v for v in variables if not is_table(v)]


def _partition(grads_and_vars: Iterable[tuple]) -> tuple[list, list]:
    dense: list[tuple] = []
    of_tables: list[tuple] = []
    for gradient, variable in grads_and_vars:
        (of_tables if is_table(variable) else dense).append((gradient, variable))
    return dense, of_tables
