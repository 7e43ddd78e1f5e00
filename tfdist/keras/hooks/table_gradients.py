"""How gradients of embedding tables pass through Keras's optimizers.

Keras would make a dense tensor of the variable's shape out of rows and ids, or take the rows of one
id for several ids' rows. Instead an optimizer gets the rows alone, as a dense tensor with each id's
row once: clipping, scaling and the check for overflow are then what they are for a dense variable.
When the step is made, rows and ids are joined again and go to the servers.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
from keras.optimizers import LossScaleOptimizer

from tfdist._types import Gradient, KerasVariable
from tfdist.internals.keras_3 import BaseOptimizer, TFOptimizer, Variable
from tfdist.keras.hooks.row_accumulator import RowAccumulator
from tfdist.keras.registry import hooks
from tfdist.keras.workers import is_table
from tfdist.ps.row_gradients import flat_rows, unique_flat_rows


@hooks(BaseOptimizer, "apply")
@hooks(LossScaleOptimizer, "apply")
def separate_ids(original, self, grads, trainable_variables=None):
    """Of a table's gradient an optimizer gets the rows; the ids stay with the table."""
    variables = trainable_variables
    if variables is None:
        variables = self._trainable_variables
    variables = list(variables)
    tables = [table_of(v) for v in variables]
    if any(table is not None for table in tables):
        grads = [_rows_of(self, g, t) for g, t in zip(grads, tables, strict=True)]
        if trainable_variables is not None:
            trainable_variables = variables
        if self.built:
            _prepare_accumulators(self, variables)
    return original(self, grads, trainable_variables)


def _rows_of(optimizer: BaseOptimizer, gradient: Gradient, table: tf.Variable | None) -> Gradient:
    if table is None or not isinstance(gradient, tf.IndexedSlices):
        return gradient
    # The push adds up the rows of one id, unless the optimizer needs the sum before.
    ids, rows = (unique_flat_rows if _looks_at_gradients(optimizer) else flat_rows)(gradient)
    table.gradient_ids.set(ids)
    return rows


def _looks_at_gradients(optimizer: BaseOptimizer) -> bool:
    """Whether an optimizer does more with a gradient than to scale it and make a step with it."""
    return isinstance(optimizer, LossScaleOptimizer) or any(
        getattr(optimizer, name) is not None
        for name in ("clipnorm", "global_clipnorm", "clipvalue", "gradient_accumulation_steps")
    )


@hooks(TFOptimizer, "_backend_update_step")
def stage_rows(original, self, grads, trainable_variables, learning_rate):
    """A step's gradients of tables are staged for the push to the servers."""
    dense, of_tables = _partition(grads, trainable_variables)
    if of_tables:
        _, table = of_tables[0]
        table.stage(of_tables, self.iterations, learning_rate)
    if dense or not of_tables:
        original(self, [g for g, _ in dense], [v for _, v in dense], learning_rate)


@hooks(TFOptimizer, "_apply_weight_decay")
def leave_out_of_weight_decay(original, self, variables):
    """Weight decay leaves tables out."""
    dense = [v for v in variables if table_of(v) is None]
    if dense:
        original(self, dense)


@hooks(TFOptimizer, "_update_model_variables_moving_average")
@hooks(TFOptimizer, "_overwrite_model_variables_with_average_value")
def leave_out_of_moving_averages(original, self, trainable_variables):
    """Moving averages leave tables out."""
    averages = self._model_variables_moving_average
    pairs = zip(trainable_variables, averages, strict=False)
    dense = [(v, a) for v, a in pairs if table_of(v) is None]
    self._model_variables_moving_average = [a for _, a in dense]
    try:
        return original(self, [v for v, _ in dense])
    finally:
        self._model_variables_moving_average = averages


@hooks(TFOptimizer, "_backend_increment_gradient_accumulators")
def accumulate_rows(original, self, grads, acc_grads):
    """Gradients of tables are accumulated as rows and ids."""
    dense = []
    for gradient, accumulator in zip(grads, acc_grads, strict=True):
        if isinstance(accumulator, RowAccumulator):
            accumulator.append(gradient)
        else:
            dense.append((gradient, accumulator))
    if dense:
        original(self, [g for g, _ in dense], [a for _, a in dense])


def _prepare_accumulators(optimizer: BaseOptimizer, variables: Sequence) -> None:
    """Replaces Keras's accumulators of tables, which have no rows as their variables have none."""
    if not optimizer.gradient_accumulation_steps:
        return
    for variable in variables:
        table = table_of(variable)
        if table is None:
            continue
        index = optimizer._get_variable_index(variable)
        if not isinstance(optimizer._accumulated_gradients[index], RowAccumulator):
            optimizer._accumulated_gradients[index] = RowAccumulator(table)


def table_of(variable: KerasVariable) -> tf.Variable | None:
    """The `TableVariable` that a variable of Keras or TensorFlow is; `None` if it is none."""
    value = variable._value if isinstance(variable, Variable) else variable
    return value if is_table(value) else None


def _partition(grads: Sequence, variables: Sequence) -> tuple[list, list]:
    """Returns pairs of gradient and variable, and pairs of gradient and table."""
    dense, of_tables = [], []
    for gradient, variable in zip(grads, variables, strict=True):
        table = table_of(variable)
        if table is None:
            dense.append((gradient, variable))
        else:
            of_tables.append((gradient, table))
    return dense, of_tables
