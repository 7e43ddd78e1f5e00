"""Variables that represent embedding tables, whose rows are on the parameter servers only.

The variable of a table has no rows. Keras, gradient tapes and optimizers use it as the layer's
weight. It is an input of each lookup, so it gets the gradient, as rows and their ids. The
optimizer's rows are staged for the next push to the servers.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

# Makes a tensor when a checkpoint is written.
from tensorflow.python.checkpoint.tensor_callable import Callable
from tensorflow.python.ops.resource_variable_ops import variable_accessed

from tfdist import ops
from tfdist.ps.export.columns import SAVED, no_rows
from tfdist.strategies._base import StrategyBase
from tfdist.strategies._variables.graphs import current_graph, in_graph_of_tensorflow_1
from tfdist.strategies._variables.server_variable import ServerVariable

# A variable of this name represents a table.
ROWS = "remote_rows"
# Prefix of a table's columns in a checkpoint.
_COLUMN = "rows_"
_ROWS = re.compile(rf"(.*/)?{ROWS}(_\d+)?(#\d+)?")


def is_rows(name: str) -> bool:
    """Whether a variable of this name represents a table."""
    return _ROWS.fullmatch(name) is not None


class GradientIds:
    """The ids of a gradient's rows, per replica, while an optimizer processes the gradient.

    In a function that is being traced they are valid for its graph and for graphs within it, such
    as the branches of a condition, each of which may set its own.
    """

    def __init__(self) -> None:
        self._eager: dict[int, tuple[tf.Tensor, tf.Tensor | None]] = {}

    def set(self, ids: tf.Tensor, pushed_here: tf.Tensor | None = None) -> None:
        """Sets the ids of the gradient's rows.

        Args:
          ids: int64[n].
          pushed_here: bool[n], for a gradient that is the sum over all replicas and the same in all
            of them: each row is pushed by one replica. `None`: the gradient is this replica's own.
        """
        self._of(current_graph())[_replica()] = (ids, pushed_here)

    def get(self) -> tf.Tensor:
        """Returns the ids that were set last, in this graph or in one around it."""
        return self._last()[0]

    @property
    def pushed_here(self) -> tf.Tensor | None:
        """As of `set`."""
        return self._last()[1]

    def _last(self) -> tuple[tf.Tensor, tf.Tensor | None]:
        graph = current_graph()
        while graph is not None and _replica() not in self._of(graph):
            graph = getattr(graph, "outer_graph", None)
        return self._of(graph)[_replica()]

    def _of(self, graph: tf.Graph | None) -> dict[int, tuple[tf.Tensor, tf.Tensor | None]]:
        if graph is None:
            return self._eager
        # An attribute of the graph, because the tensors live as long as the graph.
        if not hasattr(graph, "tfdist_gradient_ids"):
            graph.tfdist_gradient_ids = {}
        return graph.tfdist_gradient_ids.setdefault(id(self), {})


def _replica() -> int:
    replica = tf.distribute.get_replica_context()
    return 0 if replica is None else int(tf.get_static_value(replica.replica_id_in_sync_group))


class TableVariable(ServerVariable):
    """A variable without rows that represents a table.

    `attach` tells it which table; before that it can be neither looked up nor updated.
    """

    @classmethod
    def adopt(cls, variable: tf.Variable, parameters, parameter: int) -> TableVariable:
        """As `ServerVariable.adopt`."""
        adopted = super().adopt(variable, parameters, parameter)
        adopted._spec = None
        adopted._table = None
        # Whether a traced step contains the table's id.
        adopted.is_used = False
        adopted._gradient_ids = GradientIds()
        # Rows that were restored before `attach`.
        adopted._restored: dict[str, np.ndarray] | None = None
        return adopted

    def attach(self, spec: Any) -> None:
        """Makes this variable represent a table, which is created on the servers.

        Args:
          spec: the `EmbeddingTable`: its `name`, `config()` and `reset_slots`.

        Raises:
          ValueError: another table has this name, or a step already uses another table here.
        """
        if self._spec is not spec:
            table = self._parameters.add_table(spec.name, spec.config(), spec.reset_slots)
            if self.is_used and table != self._table:
                raise ValueError(
                    f"embedding table {spec.name!r}: a step that was traced before uses table "
                    f"{self._spec.name!r} in its place; load weights before the first step"
                )
            self._table = table
            self._spec = spec
            if spec.cache_rows:
                self._parameters.client.set_cache(table, spec.cache_rows, spec.cache_steps)
            if self._restored is not None:
                restored, self._restored = self._restored, None
                with tf.init_scope():  # now, not each time that a traced function runs
                    spec.restore(restored, "a checkpoint")

    @property
    def spec(self) -> Any:
        """The `EmbeddingTable` that it represents; `None` before `attach`."""
        return self._spec

    def is_taken(self, name: str) -> bool:
        """Whether another variable of this process represents a table of this name."""
        return any(
            isinstance(v, TableVariable) and v is not self and v.spec and v.spec.name == name
            for v in self._parameters.variables()
        )

    @property
    def parameters(self) -> Any:
        """The `Parameters` that pull and push it."""
        return self._parameters

    @property
    def table(self) -> int:
        """The table's id."""
        return self._table

    @property
    def width(self) -> int:
        """Number of elements of a row."""
        return self.shape[1]

    @property
    def wire_dtype(self) -> tf.DType:
        """The dtype in which rows and gradients are sent."""
        return self._spec.wire_dtype

    def learning_rate(self, steps: Any, of_model: Any) -> Any:
        """Returns the table's learning rate in a step.

        Args:
          steps: the number of previous steps.
          of_model: the learning rate of the model's optimizer; `None` if it is unknown.

        Raises:
          ValueError: neither the table nor the model's optimizer has one.
        """
        own = self._spec.learning_rate
        if own is None and of_model is None:
            raise ValueError(
                f"embedding table {self._spec.name!r}: expected a learning_rate, for the model's "
                "optimizer does not tell its own, received None"
            )
        if own is None:
            return of_model
        return own(steps) if callable(own) else own

    @property
    def gradient_ids(self) -> GradientIds:
        """The ids of the gradient's rows while an optimizer processes the gradient."""
        return self._gradient_ids

    def _serialize_to_tensors(self):
        """Adds the rows for `tf.train.Checkpoint`; they are fetched when they are written."""
        if self._spec is not None and self._spec.static is not None:
            return super()._serialize_to_tensors()
        columns: dict[str, np.ndarray] = {}

        def column(name: str) -> tf.Tensor:
            # One fetch serves all columns of a checkpoint; the next checkpoint fetches again.
            if name not in columns:
                columns.update(self._columns())
            return tf.constant(columns.pop(name))

        rows = {
            _COLUMN + name: Callable(
                functools.partial(column, name), tf.as_dtype(dtype), self.device
            )
            for name, dtype in SAVED.items()
        }
        return {**super()._serialize_to_tensors(), **rows}

    def _restore_from_tensors(self, restored_tensors):
        def restore(*columns: np.ndarray) -> None:
            restored = dict(zip(SAVED, columns, strict=True))
            if self._spec is None:
                self._restored = restored
            else:
                self._spec.restore(restored, "a checkpoint")

        # TensorFlow may restore in a function.
        tf.numpy_function(restore, [restored_tensors[_COLUMN + name] for name in SAVED], [])
        return super()._restore_from_tensors(restored_tensors)

    def _columns(self) -> dict[str, np.ndarray]:
        if self._spec is not None:
            return self._spec.columns()
        return self._restored or no_rows(self.width)

    def _export_to_saved_model_graph(self, *args, **kwargs):
        if self._spec is not None and self._spec.static is None:
            raise ValueError(
                f"tf.saved_model.save: expected a model without embedding tables, received one "
                f"with {self._spec.name!r}, whose rows are on the parameter servers: save it with "
                "tfdist.export_for_serving"
            )
        return super()._export_to_saved_model_graph(*args, **kwargs)


def lookup(
    variables: Sequence[TableVariable], ids: Sequence[tf.Tensor], training: bool
) -> list[tf.Tensor]:
    """Fetches rows; the result depends on `variables`, for gradients.

    Args:
      variables: attached, of one strategy; a variable may occur several times.
      ids: for each variable int64, of any shape.
      training: count the ids as used, and create rows for new ids.

    Returns:
      For each tensor of ids, float32 of its shape and the table's width.
    """
    parameters = variables[0].parameters
    for variable in variables:
        parameters.touch(variable, read=False)
        variable_accessed(variable)
        variable.is_used = variable.is_used or parameters.in_step
    with tf.device("/device:CPU:0"):
        return parameters.lookup(variables, ids, training)


def edit(
    variable: TableVariable, kind: ops.EditKind, ids: tf.Tensor, rows: tf.Tensor
) -> tf.Operation | None:
    """Changes rows of a table at once, not at the end of a step; as `ParameterClient.edit_rows`."""
    client = _prepared(variable)
    with tf.device("/device:CPU:0"):
        return client.edit_rows(variable, kind, ids, rows)


def find(variable: TableVariable, ids: tf.Tensor, values: bool) -> tuple[tf.Tensor, tf.Tensor]:
    """As `ParameterClient.find_rows`."""
    client = _prepared(variable)
    with tf.device("/device:CPU:0"):
        return client.find_rows(variable, ids, values)


def size(variable: TableVariable) -> tf.Tensor:
    """As `ParameterClient.table_size`."""
    client = _prepared(variable)
    with tf.device("/device:CPU:0"):
        return client.table_size(variable)


def _prepared(variable: TableVariable) -> ops.ParameterClient:
    variable.parameters.touch(variable, read=False)
    # A function that is being traced contains the table's id from now on.
    variable.is_used = variable.is_used or current_graph() is not None
    return variable.parameters.client


def flat_rows(gradient: tf.IndexedSlices) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the ids of a gradient, int64[n], and their rows, float32[n, width]."""
    ids = tf.reshape(tf.cast(gradient.indices, tf.int64), [-1])
    rows = tf.cast(gradient.values, tf.float32)
    return ids, tf.reshape(rows, [-1, rows.shape[-1]])


def unique_flat_rows(gradient: tf.IndexedSlices) -> tuple[tf.Tensor, tf.Tensor]:
    """As `flat_rows`, with each id once and the sum of its rows."""
    with tf.device("/device:CPU:0"):
        return ops.sum_rows(*flat_rows(gradient))


def sum_over_replicas(rows: tf.Tensor, variable: TableVariable) -> tf.Tensor:
    """Sums a table's gradients over the replicas of a synchronous step.

    Every replica gets all rows, for optimizers that need the sum. The rows are sent once more than
    without this function.

    Args:
      rows: float32[n, width], this replica's; `variable.gradient_ids` has their ids.
      variable: of the table; its `gradient_ids` become those of the sum.

    Returns:
      float32[m, width], one row per id, the same in all replicas.
    """

    # Ids and rows are gathered in one tensor, so that the set of replicas cannot change in between.
    # They are bitcast to integers, because adding zero to an integer never changes its bits.
    ids = variable.gradient_ids.get()
    columns = [
        tf.bitcast(ids, tf.int32),
        tf.fill([tf.size(ids), 1], _replica()),
        tf.bitcast(tf.cast(rows, tf.float32), tf.int32),
    ]

    def gather(strategy, own):
        return strategy.gather(own, axis=0)

    replica = tf.distribute.get_replica_context()
    gathered = replica.merge_call(gather, args=(tf.concat(columns, 1),))
    gathered = tf.ensure_shape(gathered, [None, 3 + variable.width])
    ids, index = tf.unique(tf.bitcast(gathered[:, :2], tf.int64))
    rows = tf.bitcast(gathered[:, 3:], tf.float32)
    sums = tf.math.unsorted_segment_sum(rows, index, tf.size(ids))
    # The first replica that has an id pushes its row, so pushes do not depend on absent replicas.
    first = tf.math.unsorted_segment_min(tf.range(tf.size(index)), index, tf.size(ids))
    variable.gradient_ids.set(ids, tf.gather(gathered[:, 2], first) == _replica())
    return sums


def stage(
    gradients: Sequence[tuple[tf.Tensor, TableVariable]], steps: Any, learning_rate: Any
) -> tf.Operation | None:
    """Holds gradients of rows for the push that ends the step; outside of a step, makes one.

    Args:
      gradients: at least one pair of float[n, width] and its variable, whose `gradient_ids` are the
        n ids of the rows; the variables are attached and of one strategy.
      steps: the number of previous steps of the model's optimizer.
      learning_rate: the optimizer's learning rate in this step; `None` if it is unknown.

    Returns:
      The operation, in a graph.
    """
    variables = [variable for _, variable in gradients]
    parameters = variables[0].parameters
    if not _belongs_to_step(parameters):
        with parameters.step():  # without it, nothing would push
            return stage(gradients, steps, learning_rate)
    with tf.device("/device:CPU:0"):
        own = [_own_rows(gradient, variable) for gradient, variable in gradients]
        staged = parameters.stage_rows(
            variables,
            [ids for ids, _ in own],
            [rows for _, rows in own],
            [variable.learning_rate(steps, learning_rate) for variable in variables],
            steps + 1,
        )
    parameters.has_staged(variables)
    return staged


def _belongs_to_step(parameters: Any) -> bool:
    """Whether a push will send the gradients that are staged here."""
    # A replica may run in a thread of its own, where `in_step` is false.
    replica = tf.distribute.get_replica_context()
    is_replica = replica is not None and isinstance(replica.strategy, StrategyBase)
    return parameters.in_step or is_replica or in_graph_of_tensorflow_1()


def _own_rows(gradient: tf.Tensor, variable: TableVariable) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the ids and rows that this replica pushes; the servers sum those of all replicas."""
    ids, pushed_here = variable.gradient_ids.get(), variable.gradient_ids.pushed_here
    if pushed_here is None:
        return ids, gradient
    return tf.boolean_mask(ids, pushed_here), tf.boolean_mask(gradient, pushed_here)
