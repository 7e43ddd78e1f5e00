"""The common base of the embedding layers for Keras 3 and tf_keras."""

from __future__ import annotations

import inspect
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import tensorflow as tf

from tfdist._types import AnyTensor
from tfdist.embedding import ids as id_kinds
from tfdist.embedding import optimizers
from tfdist.embedding.initializers import AnyInitializer
from tfdist.embedding.lookup import check_max_norm, rows_of
from tfdist.embedding.optimizers import AnyRowOptimizer
from tfdist.embedding.table import ROWS, EmbeddingTable
from tfdist.keras.substitute_rows.calls import looked_up

if TYPE_CHECKING:
    import h5py

# The prefix of a table's columns in a saved layer.
ROWS_OF_TABLE = "rows_"

# The arguments that a layer passes to its table.
_TABLE_ARGUMENTS = tuple(
    name
    for name, parameter in inspect.signature(EmbeddingTable).parameters.items()
    if parameter.kind == parameter.KEYWORD_ONLY
    and name not in ("input_dim", "optimizer", "initializer")
)


# The variables of a layer in a saved model, by name: a dict, or a group of an HDF5 file.
Store: TypeAlias = "MutableMapping[str, np.ndarray] | h5py.Group"


def save_rows(store: Store, table: EmbeddingTable, prefix: str = ROWS_OF_TABLE) -> None:
    """Adds a table's rows to the saved variables of a layer, under names with a prefix."""
    for name, column in table.columns().items():
        store[prefix + name] = column


def load_rows(store: Store, table: EmbeddingTable, prefix: str = ROWS_OF_TABLE) -> None:
    """Sends the rows of `save_rows` to the servers, if there are any."""
    names = [name for name in store.keys() if name.startswith(prefix)]  # noqa: SIM118
    columns = {name.removeprefix(prefix): np.array(store[name]) for name in names}
    if columns:
        table.restore(columns, f"embedding table {table.name!r}, as it was saved")


# For type checkers: a Keras layer's class follows this one, and has no types.
_Base: Any = object


class RemoteEmbedding(_Base):
    """The first base class of an embedding layer, before the library's `Layer`.

    Args:
      input_dim: ids must be in [0, input_dim); `None`: any integers or strings.
      output_dim: the width of a row.
      optimizer: as for `EmbeddingTable`.
      initializer: as for `EmbeddingTable`.
      combiner: `None`, or "sum", "mean" or "sqrtn" over the last dimension of the ids.
      prefetch: in `fit` of a functional or Sequential model, look up the rows of the next batch
        during this one, so that they lack this worker's last step.
      table: an `EmbeddingTable` that several layers share, instead of the arguments of a table.
      max_norm: rows with a larger Euclidean norm are scaled to this norm, as in
        `tf.nn.embedding_lookup`.
      default_id: for sparse or ragged ids with a combiner: the id for examples without ids. Invalid
        ids are removed, as in `tfdist.ops.safe_embedding_lookup_sparse`.
      **kwargs: further arguments of `EmbeddingTable`, from `learning_rate` on, and of the library's
        `Layer`.
    """

    def __init__(
        self,
        input_dim: int | None = None,
        output_dim: int = 64,
        optimizer: AnyRowOptimizer = "adagrad",
        initializer: AnyInitializer = "uniform",
        combiner: str | None = None,
        *,
        prefetch: bool = False,
        table: EmbeddingTable | None = None,
        max_norm: float | None = None,
        default_id: int | str | None = None,
        **kwargs: Any,
    ) -> None:
        table_arguments = {name: kwargs.pop(name) for name in _TABLE_ARGUMENTS if name in kwargs}
        super().__init__(**kwargs)
        if combiner not in id_kinds.COMBINERS:
            raise ValueError(
                f"embedding layer {self.name!r}: expected combiner to be one of "
                f"{id_kinds.COMBINERS}, received {combiner!r}"
            )
        if table is not None and (
            table_arguments or input_dim is not None or output_dim not in (64, table.output_dim)
        ):
            raise ValueError(
                f"embedding layer {self.name!r}: expected no arguments that describe a table "
                f"beside table={table.name!r}, which has its own, received input_dim={input_dim}, "
                f"output_dim={output_dim}, {table_arguments}"
            )
        check_max_norm(f"embedding layer {self.name!r}", max_norm)
        if default_id is not None and combiner is None:
            raise ValueError(
                f"embedding layer {self.name!r}: expected a combiner with default_id="
                f"{default_id!r}, received None"
            )
        self.combiner = combiner
        self.max_norm = max_norm
        self.default_id = default_id
        self.prefetch = prefetch
        self.output_dim = output_dim if table is None else table.output_dim
        self._shared_table = table
        self._arguments = {
            "input_dim": input_dim,
            "optimizer": optimizers.get(optimizer),
            "initializer": initializer,
            **table_arguments,
        }
        self._own_table: EmbeddingTable | None = None
        if table is not None:
            self._share(table)
        else:
            self._make_table(self.name)  # checks its arguments early

    @property
    def has_table(self) -> bool:
        """Whether the table's name is known."""
        return (self._shared_table or self._own_table) is not None

    @property
    def table(self) -> EmbeddingTable:
        """The layer's table.

        Raises:
          ValueError: the layer has not been built.
        """
        table = self._shared_table or self._own_table
        if table is None:
            raise ValueError(f"embedding layer {self.name!r}: it has no table until it is built")
        return table

    def _share(self, table: EmbeddingTable) -> None:
        """Records that other layers may use this layer's table, too."""

    @property
    def tables(self) -> list[EmbeddingTable]:
        """All tables of the layer; empty until their names are known."""
        return [self.table] if self.has_table else []

    def ids_by_table(self, inputs: AnyTensor) -> list[tuple[EmbeddingTable, AnyTensor]]:
        """Returns the ids that a call with these inputs looks up, for prefetching."""
        return [(self.table, self._valid(inputs, None)[0])]

    def _make_table(self, name: str) -> EmbeddingTable:
        return EmbeddingTable(name, self.output_dim, **self._arguments)

    def _use_table(self, name: str) -> None:
        self._own_table = self._make_table(name)
        self._own_table.weight(lambda *_: self.rows)

    def _variable(self) -> tf.Variable | None:
        """Returns the variable that represents the table; `None` until it exists."""
        raise NotImplementedError

    def _name_of_table(self, variable: tf.Variable) -> str:
        """Returns the variable's name in all workers, without the common suffix."""
        parameters = getattr(variable, "parameters", None)
        name = self.name if parameters is None else parameters[variable.parameter].name
        return name.replace(f"/{ROWS}", "")

    def _check_name(self, variable: tf.Variable | None) -> None:
        """Raises ValueError if the workers that hold tables make another layer at this time."""
        parameters = getattr(variable, "parameters", None)
        if variable is not None and parameters is not None:
            parameters.check_name(parameters[variable.parameter].name)

    def _look_up(
        self, inputs: AnyTensor, weights: AnyTensor | None, training: bool | None
    ) -> tf.Tensor | tf.RaggedTensor:
        variable = self._variable()
        inputs, weights = self._valid(inputs, weights)
        flat = id_kinds.flat_values(inputs)
        if variable is None:
            # Keras is inferring the model's shapes; there are no variables yet.
            rows = tf.zeros(tf.concat([tf.shape(flat), [self.output_dim]], 0))
            rows = tf.ensure_shape(rows, [*flat.shape, self.output_dim])
        else:
            self._find_table(variable)
            counts = self._counts(training)
            rows = looked_up(lambda ids: rows_of([self.table], [ids], counts)[0], flat)
        rows = tf.cast(id_kinds.clipped(rows, self.max_norm), self.compute_dtype)
        return id_kinds.combined(inputs, rows, weights, self.combiner)

    def _valid(
        self, inputs: AnyTensor, weights: AnyTensor | None
    ) -> tuple[AnyTensor, AnyTensor | None]:
        """Returns ids and weights, without invalid ids if the layer has a `default_id`."""
        if self.default_id is None:
            return inputs, weights
        if not isinstance(inputs, tf.RaggedTensor | tf.SparseTensor):
            raise ValueError(
                f"embedding layer {self.name!r}: expected sparse or ragged ids with default_id="
                f"{self.default_id!r}, received a {type(inputs).__name__}"
            )
        assert self.combiner is not None  # as `default_id` demands
        table = self._shared_table
        input_dim = self._arguments["input_dim"] if table is None else table.input_dim
        return id_kinds.safe(
            inputs, weights, self.combiner, self.default_id, drops_negative=input_dim is not None
        )

    def _find_table(self, variable: tf.Variable) -> None:
        if not self.has_table:
            self._use_table(self._name_of_table(variable))

    def _counts(self, training: bool | None) -> bool:
        """Whether ids count as seen."""
        return bool(training) and self.trainable

    def get_config(self) -> dict[str, object]:
        """Returns the arguments, from which `from_config` makes an equal layer."""
        own = {
            "combiner": self.combiner,
            "prefetch": self.prefetch,
            "max_norm": self.max_norm,
            "default_id": self.default_id,
        }
        if self._shared_table is not None:
            return {**super().get_config(), **own, "table": self._shared_table}
        optimizer = {"optimizer": self._arguments["optimizer"].get_config()}
        table_arguments = {"output_dim": self.output_dim, **self._arguments, **optimizer}
        table_arguments.pop("placement", None)  # of the job, not of the model
        return {**super().get_config(), **own, **table_arguments}
