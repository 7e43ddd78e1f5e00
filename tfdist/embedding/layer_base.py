"""What the embedding layers for Keras 3 and tf_keras have in common."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.embedding import ids as id_kinds
from tfdist.embedding import optimizers
from tfdist.embedding.lookup import check_max_norm, rows_of
from tfdist.embedding.table import ROWS, EmbeddingTable

# What a saved layer calls the columns of its table.
ROWS_OF_TABLE = "rows_"

# The arguments of a table that a layer passes on.
_OF_TABLE = tuple(
    name
    for name, parameter in inspect.signature(EmbeddingTable).parameters.items()
    if parameter.kind == parameter.KEYWORD_ONLY
    and name not in ("input_dim", "optimizer", "initializer")
)


def save_rows(store: Any, table: EmbeddingTable, prefix: str = ROWS_OF_TABLE) -> None:
    """Puts a table's rows into what Keras saves of a layer, under names with a prefix."""
    for name, column in table.columns().items():
        store[prefix + name] = column


def load_rows(store: Any, table: EmbeddingTable, prefix: str = ROWS_OF_TABLE) -> None:
    """Gives the servers the rows that `save_rows` has saved, if it has."""
    names = [name for name in store.keys() if name.startswith(prefix)]  # noqa: SIM118
    columns = {name.removeprefix(prefix): np.array(store[name]) for name in names}
    if columns:
        table.restore(columns, f"embedding table {table.name!r}, as it was saved")


class RemoteEmbedding:
    """Goes before a library's `Layer` among the bases of an embedding layer.

    Args:
      input_dim: ids must be from 0 to this, exclusive; `None`: any integers or strings.
      output_dim: the width of a row.
      optimizer: as of `EmbeddingTable`.
      initializer: likewise.
      combiner: `None`, or "sum", "mean" or "sqrtn" over the last dimension of the ids.
      prefetch: in `fit` of a functional or Sequential model look up the rows of the next batch
        while this one is computed, so that they lack this worker's last step.
      table: an `EmbeddingTable` that several layers share, instead of the arguments that say what
        a table is like.
      max_norm: rows of a larger Euclidean norm are scaled down to it, as in
        `tf.nn.embedding_lookup`.
      default_id: of sparse or ragged ids with a combiner: the id that an example without ids gets;
        ids that are not valid are left out, as by `tfdist.ops.safe_embedding_lookup_sparse`.
      **kwargs: further arguments of `EmbeddingTable`, from `learning_rate` on, and of the library's
        `Layer`.
    """

    def __init__(
        self,
        input_dim: int | None = None,
        output_dim: int = 64,
        optimizer: Any = "adagrad",
        initializer: Any = "uniform",
        combiner: str | None = None,
        *,
        prefetch: bool = False,
        table: EmbeddingTable | None = None,
        max_norm: float | None = None,
        default_id: int | str | None = None,
        **kwargs: Any,
    ) -> None:
        of_table = {name: kwargs.pop(name) for name in _OF_TABLE if name in kwargs}
        super().__init__(**kwargs)
        if combiner not in id_kinds.COMBINERS:
            raise ValueError(
                f"embedding layer {self.name!r}: expected combiner to be one of "
                f"{id_kinds.COMBINERS}, received {combiner!r}"
            )
        if table is not None and (
            of_table or input_dim is not None or output_dim not in (64, table.output_dim)
        ):
            raise ValueError(
                f"embedding layer {self.name!r}: expected no arguments that say what a table is "
                f"like beside table={table.name!r}, which has its own, received input_dim="
                f"{input_dim}, output_dim={output_dim}, {of_table}"
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
            **of_table,
        }
        self._own_table: EmbeddingTable | None = None
        if table is not None:
            self._share(table)
        else:
            self._make_table(self.name)  # says now what is wrong with its arguments

    @property
    def has_table(self) -> bool:
        """Whether it is known which table it is."""
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
        """Notes that the layer's table may be that of others, too."""

    @property
    def tables(self) -> list[EmbeddingTable]:
        """All tables of the layer; empty until it is known which."""
        return [self.table] if self.has_table else []

    def ids_by_table(self, inputs: Any) -> list[tuple[EmbeddingTable, Any]]:
        """The ids that a call with these inputs looks up; prefetching asks for them ahead."""
        return [(self.table, self._valid(inputs, None)[0])]

    def _make_table(self, name: str) -> EmbeddingTable:
        return EmbeddingTable(name, self.output_dim, **self._arguments)

    def _use_table(self, name: str) -> None:
        self._own_table = self._make_table(name)
        self._own_table.weight(lambda *_: self.rows)

    def _variable(self) -> tf.Variable | None:
        """The variable that stands for the table; `None` as long as it is only planned."""
        raise NotImplementedError

    def _name_of_table(self, variable: tf.Variable) -> str:
        """The variable's name in all workers, without what all such variables are called."""
        parameters = getattr(variable, "parameters", None)
        name = self.name if parameters is None else parameters[variable.parameter].name
        return name.replace(f"/{ROWS}", "")

    def _look_up(self, inputs: Any, weights: Any, training: bool | None) -> Any:
        variable = self._variable()
        inputs, weights = self._valid(inputs, weights)
        flat = id_kinds.flat_values(inputs)
        if variable is None:
            # The model's shapes are being found out, before it has variables.
            rows = tf.zeros(tf.concat([tf.shape(flat), [self.output_dim]], 0))
            rows = tf.ensure_shape(rows, [*flat.shape, self.output_dim])
        else:
            self._find_table(variable)
            (rows,) = rows_of([self.table], [flat], self._counts(training))
        rows = tf.cast(id_kinds.clipped(rows, self.max_norm), self.compute_dtype)
        return id_kinds.combined(inputs, rows, weights, self.combiner)

    def _valid(self, inputs: Any, weights: Any) -> tuple[Any, Any]:
        """Ids and weights without those that are not to count, where the layer leaves some out."""
        if self.default_id is None:
            return inputs, weights
        if not isinstance(inputs, tf.RaggedTensor | tf.SparseTensor):
            raise ValueError(
                f"embedding layer {self.name!r}: expected sparse or ragged ids with default_id="
                f"{self.default_id!r}, received a {type(inputs).__name__}"
            )
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

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, of which `from_config` makes an equal layer."""
        own = {
            "combiner": self.combiner,
            "prefetch": self.prefetch,
            "max_norm": self.max_norm,
            "default_id": self.default_id,
        }
        if self._shared_table is not None:
            return {**super().get_config(), **own, "table": self._shared_table}
        optimizer = {"optimizer": self._arguments["optimizer"].get_config()}
        of_table = {"output_dim": self.output_dim, **self._arguments, **optimizer}
        return {**super().get_config(), **own, **of_table}
