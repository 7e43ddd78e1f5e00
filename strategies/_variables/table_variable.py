"""Stand-ins for tables whose rows are on parameter servers, or on the servers in the workers.

A table has a variable of no rows: Keras, gradient tapes and optimizers take it for the weight. A
lookup names it, so that it gets the gradient, as rows and their ids. The optimizer's calls on that
gradient go to the servers, for the next push.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

# The tensors that a variable gives TensorFlow to save, or functions that make them.
from tfdist.internals.tensorflow import Callable, variable_accessed
from tfdist.ops.ps.client import ParameterClient
from tfdist.ops.ps.tables import EditKind
from tfdist.ps.export.columns import SAVED, no_rows
from tfdist.strategies._base import StrategyBase
from tfdist.strategies._variables.graphs import current_graph, in_graph_of_tensorflow_1
from tfdist.strategies._variables.server_variable import ServerVariable

# The prefix of a table's columns in a checkpoint.
_COLUMN = "rows_"


class GradientIds:
    """Ids of a gradient's rows while an optimizer works on the gradient, for each replica.

    In a function that is traced they hold for its graph and for those within, such as the branches
    of a condition, of which each may set its own.
    """

    def __init__(self) -> None:
        self._eager: dict[int, tuple[tf.Tensor, tf.Tensor | None]] = {}

    def set(self, ids: tf.Tensor, pushed_here: tf.Tensor | None = None) -> None:
        """Says which rows the gradient is of.

        Args:
          ids: int64[n].
          pushed_here: bool[n], if the gradient is the sum over all replicas, which have the same:
            each row is pushed by one of them. `None`: it is this replica's own.
        """
        self._of(current_graph())[_replica()] = (ids, pushed_here)

    def get(self) -> tf.Tensor:
        """Returns what was set last, here or around this graph."""
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
        # Kept by the graph, whose tensors they are, so that they end with it.
        if not hasattr(graph, "tfdist_gradient_ids"):
            graph.tfdist_gradient_ids = {}
        return graph.tfdist_gradient_ids.setdefault(id(self), {})


def _replica() -> int:
    replica = tf.distribute.get_replica_context()
    return 0 if replica is None else int(tf.get_static_value(replica.replica_id_in_sync_group))


class TableVariable(ServerVariable):
    """A variable of no rows that stands for a table.

    `attach` says for which one; until then it can be neither looked up nor updated.
    """

    # For tfdist.keras, which cannot import this class.
    stands_for_table = True
    _spec: Any
    _table: Any  # its number; `None` before `attach`
    _gradient_ids: GradientIds
    # Rows that were restored before it was known of which table.
    _restored: dict[str, np.ndarray] | None

    @classmethod
    def adopt(cls, variable: tf.Variable, parameters: Any, number: int) -> TableVariable:
        """As `ServerVariable.adopt`."""
        adopted = super().adopt(variable, parameters, number)
        adopted._spec = None
        adopted._table = None
        # Whether there is a step that knows the table's number.
        adopted.is_used = False
        adopted._gradient_ids = GradientIds()
        adopted._restored = None
        return adopted

    def attach(self, spec: Any) -> None:
        """Makes this the stand-in of a table, which is created on the servers.

        Args:
          spec: the `EmbeddingTable`: its `name`, `config()`, `reset_slots` and `placement`.

        Raises:
          ValueError: there is another table of this name, another one was used here, or the job
            holds its tables elsewhere.
        """
        if self._spec is not spec:
            self._check_placement(spec)
            number = self._parameters.add_table(spec.name, spec.config(), spec.reset_slots)
            if self.is_used and number != self._table:
                raise ValueError(
                    f"embedding table {spec.name!r}: a step that was traced before uses table "
                    f"{self._spec.name!r} in its place; load weights before the first step"
                )
            self._table = number
            self._spec = spec
            if spec.cache_rows:
                self._parameters.set_cache(spec.name, number, spec.cache_rows, spec.cache_steps)
            if self._restored is not None:
                restored, self._restored = self._restored, None
                with tf.init_scope():  # now, and not whenever a function that is traced runs
                    spec.restore(restored, "a checkpoint")

    def _check_placement(self, spec: Any) -> None:
        held_by = self._parameters.tables_on
        if spec.placement is None or spec.placement in held_by:
            return
        reason = {
            "servers": "its tables are on the parameter servers",
            "workers": "its tables are on the workers: the cluster has no ps tasks (tfdist run "
            "--ps 1 starts one)",
        }[held_by[0]]
        raise ValueError(
            f"embedding table {spec.name!r}: expected placement={held_by[0]!r} or None in this "
            f"job, received placement={spec.placement!r}: {reason}"
        )

    @property
    def spec(self) -> Any:
        """The `EmbeddingTable` that it stands for; `None` until then."""
        return self._spec

    def is_taken(self, name: str) -> bool:
        """Whether another variable of this process stands for a table of this name."""
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
        """The table's number."""
        return self._table

    @property
    def width(self) -> int:
        """Elements of a row."""
        return self.shape[1]

    @property
    def wire_dtype(self) -> tf.DType:
        """As what rows and gradients travel."""
        return self._spec.wire_dtype

    def learning_rate(self, steps: Any, of_model: Any) -> Any:
        """The table's learning rate in a step.

        Args:
          steps: how many there have been.
          of_model: the learning rate of the model's optimizer; `None` if that does not tell it.

        Raises:
          ValueError: there is none.
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
        """To which rows the gradient belongs that an optimizer works on."""
        return self._gradient_ids

    def sum_over_replicas(self, rows: tf.Tensor) -> tf.Tensor:
        """Adds up the gradients of the table that the replicas of a synchronous step have.

        Every replica gets all rows, which travel once more than without: for optimizers that need
        the sum.

        Args:
          rows: float32[n, width], this replica's, whose ids `gradient_ids` has; it gets the ids of
            the sum.

        Returns:
          float32[m, width], each id's row once, the same in all replicas.
        """
        # In one tensor, so that no worker comes or goes between ids and rows; as integers, to which
        # zeros may be added without changing what they stand for.
        ids = self.gradient_ids.get()
        own_replica = self._parameters.replica_of_all(_replica())
        columns = [
            tf.bitcast(ids, tf.int32),
            tf.fill([tf.size(ids), 1], own_replica),
            tf.bitcast(tf.cast(rows, tf.float32), tf.int32),
        ]

        def gather(strategy, own):
            return strategy.gather(own, axis=0)

        replica = tf.distribute.get_replica_context()
        gathered = replica.merge_call(gather, args=(tf.concat(columns, 1),))
        gathered = tf.ensure_shape(gathered, [None, 3 + self.width])
        ids, index = tf.unique(tf.bitcast(gathered[:, :2], tf.int64))
        rows = tf.bitcast(gathered[:, 3:], tf.float32)
        sums = tf.math.unsorted_segment_sum(rows, index, tf.size(ids))
        # The first replica that has an id pushes its row.
        first = tf.math.unsorted_segment_min(tf.range(tf.size(index)), index, tf.size(ids))
        self.gradient_ids.set(ids, tf.gather(gathered[:, 2], first) == own_replica)
        return sums

    @staticmethod
    def stage(
        gradients: Sequence[tuple[tf.Tensor, TableVariable]], steps: Any, learning_rate: Any
    ) -> tf.Operation | None:
        """Keeps gradients of rows for the push that ends the step; outside of one, makes a step.

        Args:
          gradients: float[n, width], each with its variable, whose `gradient_ids` are the n ids of
            the rows; attached, of one strategy, one or more.
          steps: how many the model's optimizer has made.
          learning_rate: its learning rate in this step; `None` if it does not tell.

        Returns:
          The operation, in a graph.
        """
        variables = [variable for _, variable in gradients]
        parameters = variables[0].parameters
        if not _is_of_step(parameters):
            with parameters.step():  # no other step would push
                return TableVariable.stage(gradients, steps, learning_rate)
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

    def _serialize_to_tensors(self):
        """The rows too, for `tf.train.Checkpoint`; asked for when they are written."""
        if self._spec is not None and self._spec.static is not None:
            return super()._serialize_to_tensors()
        columns: dict[str, np.ndarray] = {}

        def column(name: str) -> tf.Tensor:
            # All of one moment; the next time they are asked for it is another one.
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
    """Brings rows, which depend on `variables`.

    Args:
      variables: attached, of one strategy; one may come several times.
      ids: for each of them int64, of any shape.
      training: count the ids as seen, and give them rows.

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
    variable: TableVariable, kind: EditKind, ids: tf.Tensor, rows: tf.Tensor
) -> tf.Operation | None:
    """Changes rows of a table at once, not at the end of a step; as `ParameterClient.edit_rows`."""
    client = _prepared(variable)
    with tf.device("/device:CPU:0"):
        return client.tables.edit(variable, kind, ids, rows)


def find(variable: TableVariable, ids: tf.Tensor, values: bool) -> tuple[tf.Tensor, tf.Tensor]:
    """As `ParameterClient.find_rows`."""
    client = _prepared(variable)
    with tf.device("/device:CPU:0"):
        return client.tables.find(variable, ids, values)


def size(variable: TableVariable) -> tf.Tensor:
    """As `ParameterClient.table_size`."""
    client = _prepared(variable)
    with tf.device("/device:CPU:0"):
        return client.tables.size(variable)


def _prepared(variable: TableVariable) -> ParameterClient:
    variable.parameters.touch(variable, read=False)
    # A function that is traced knows the table's number from now on.
    variable.is_used = variable.is_used or current_graph() is not None
    return variable.parameters.client


def _is_of_step(parameters: Any) -> bool:
    """Whether a push takes the gradients staged here."""
    # A replica may have a thread of its own, which does not know of the step.
    replica = tf.distribute.get_replica_context()
    is_replica = replica is not None and isinstance(replica.strategy, StrategyBase)
    return parameters.in_step or is_replica or in_graph_of_tensorflow_1()


def _own_rows(gradient: tf.Tensor, variable: TableVariable) -> tuple[tf.Tensor, tf.Tensor]:
    """The ids and rows that this replica pushes: the servers add up all replicas' rows."""
    ids, here = variable.gradient_ids.get(), variable.gradient_ids.pushed_here
    if here is None:
        return ids, gradient
    return tf.boolean_mask(ids, here), tf.boolean_mask(gradient, here)
