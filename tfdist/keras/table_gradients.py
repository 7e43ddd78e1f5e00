"""How gradients of embedding tables pass through Keras's optimizers.

Keras would make a dense tensor of the shape of the variable out of rows and ids, or take rows of
one id for those of several. So an optimizer gets the rows alone, each id's once, as a dense tensor:
clipping, scaling and the search for overflow are then what they are for a dense variable. When the
step is made, rows and ids come together again and go to the servers.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from keras.optimizers import LossScaleOptimizer
from keras.src.backend import Variable
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.optimizers.base_optimizer import BaseOptimizer

from tfdist.keras.row_accumulator import RowAccumulator
from tfdist.strategies._variables import table_variable
from tfdist.strategies._variables.table_variable import TableVariable


def send_rows_to_servers() -> None:
    """Lets optimizers leave the rows of tables to the servers."""
    for optimizer in (BaseOptimizer, LossScaleOptimizer):
        _separate_ids(optimizer)
    _stage_rows()
    _leave_out_of_weight_decay()
    _leave_out_of_moving_averages()
    _accumulate_rows()


def _separate_ids(optimizer: type) -> None:
    original = optimizer.apply

    @functools.wraps(original)
    def apply(self, grads, trainable_variables=None):
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

    optimizer.apply = apply


def _rows_of(optimizer: BaseOptimizer, gradient: Any, table: TableVariable | None) -> Any:
    if table is None or not isinstance(gradient, tf.IndexedSlices):
        return gradient
    if _looks_at_gradients(optimizer):
        ids, rows = table_variable.unique_flat_rows(gradient)
    else:  # the push adds them up
        ids, rows = table_variable.flat_rows(gradient)
    table.gradient_ids.set(ids)
    return rows


def _looks_at_gradients(optimizer: BaseOptimizer) -> bool:
    """Whether an optimizer does more with a gradient than to scale it and make a step with it."""
    return isinstance(optimizer, LossScaleOptimizer) or any(
        getattr(optimizer, name) is not None
        for name in ("clipnorm", "global_clipnorm", "clipvalue", "gradient_accumulation_steps")
    )


def _stage_rows() -> None:
    original = TFOptimizer._backend_update_step

    @functools.wraps(original)
    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        dense, of_tables = _parted(grads, trainable_variables)
        if of_tables:
            table_variable.stage(of_tables, self.iterations, learning_rate)
        if dense or not of_tables:
            original(self, [g for g, _ in dense], [v for _, v in dense], learning_rate)

    TFOptimizer._backend_update_step = _backend_update_step


def _leave_out_of_weight_decay() -> None:
    original = TFOptimizer._apply_weight_decay

    @functools.wraps(original)
    def _apply_weight_decay(self, variables):
        dense = [v for v in variables if table_of(v) is None]
        if dense:
            original(self, dense)

    TFOptimizer._apply_weight_decay = _apply_weight_decay


def _leave_out_of_moving_averages() -> None:
    for name in (
        "_update_model_variables_moving_average",
        "_overwrite_model_variables_with_average_value",
    ):
        _with_dense_variables(name)


def _with_dense_variables(name: str) -> None:
    original = getattr(TFOptimizer, name)

    @functools.wraps(original)
    def average(self, trainable_variables):
        averages = self._model_variables_moving_average
        pairs = zip(trainable_variables, averages, strict=False)
        dense = [(v, a) for v, a in pairs if table_of(v) is None]
        self._model_variables_moving_average = [a for _, a in dense]
        try:
            return original(self, [v for v, _ in dense])
        finally:
            self._model_variables_moving_average = averages

    setattr(TFOptimizer, name, average)


def _accumulate_rows() -> None:
    original = TFOptimizer._backend_increment_gradient_accumulators

    @functools.wraps(original)
    def _backend_increment_gradient_accumulators(self, grads, acc_grads):
        dense = []
        for gradient, accumulator in zip(grads, acc_grads, strict=True):
            if isinstance(accumulator, RowAccumulator):
                accumulator.append(gradient)
            else:
                dense.append((gradient, accumulator))
        if dense:
            original(self, [g for g, _ in dense], [a for _, a in dense])

    TFOptimizer._backend_increment_gradient_accumulators = _backend_increment_gradient_accumulators


def _prepare_accumulators(optimizer: BaseOptimizer, variables: Sequence) -> None:
    """Replaces Keras's accumulators, of no rows as the variables are."""
    if not optimizer.gradient_accumulation_steps:
        return
    for variable in variables:
        table = table_of(variable)
        if table is None:
            continue
        index = optimizer._get_variable_index(variable)
        if not isinstance(optimizer._accumulated_gradients[index], RowAccumulator):
            optimizer._accumulated_gradients[index] = RowAccumulator(table)


def table_of(variable: Any) -> TableVariable | None:
    """The table that a variable of Keras or TensorFlow stands for, if it does."""
    value = variable._value if isinstance(variable, Variable) else variable
    return value if isinstance(value, TableVariable) else None


def _parted(grads: Sequence, variables: Sequence) -> tuple[list, list]:
    """Returns pairs of gradient and variable, and pairs of gradient and table."""
    dense, of_tables = [], []
    for gradient, variable in zip(grads, variables, strict=True):
        table = table_of(variable)
        if table is None:
            dense.append((gradient, variable))
        else:
            of_tables.append((gradient, table))
    return dense, of_tables
