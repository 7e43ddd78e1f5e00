"""What the embedding layers for Keras 3 and tf_keras have in common."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.embedding import ids as id_kinds
from tfdist.embedding import optimizers
from tfdist.embedding.lookup import rows_of
from tfdist.embedding.table import EmbeddingTable
from tfdist.strategies.table_variable import ROWS

# What a saved layer calls the columns of its table.
ROWS_OF_TABLE = "rows_"

# The arguments of a table that a layer passes on.
_OF_TABLE = tuple(
    name
    for name, parameter in inspect.signature(EmbeddingTable).parameters.items()
    if parameter.kind == parameter.KEYWORD_ONLY
    and name not in ("input_dim", "optimizer", "initializer")
)


def save_rows(store: Any, table: EmbeddingTable) -> None:
    """Puts a table's rows into what Keras saves of a layer."""
    for name, column in table.columns().items():
        store[ROWS_OF_TABLE + name] = column


def load_rows(store: Any, table: EmbeddingTable) -> None:
    """Gives the servers the rows that `save_rows` has saved, if it has."""
    names = [name for name in store.keys() if name.startswith(ROWS_OF_TABLE)]  # noqa: SIM118
    columns = {name.removeprefix(ROWS_OF_TABLE): np.array(store[name]) for name in names}
    if columns and len(columns["ids"]):
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
        self.combiner = combiner
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
        flat = id_kinds.flat_values(inputs)
        if variable is None:
            # The model's shapes are being found out, before it has variables.
            rows = tf.zeros(tf.concat([tf.shape(flat), [self.output_dim]], 0))
            rows = tf.ensure_shape(rows, [*flat.shape, self.output_dim])
        else:
            if self._shared_table is None and self._own_table is None:
                self._use_table(self._name_of_table(variable))
            counts = bool(training) and self.trainable
            (rows,) = rows_of([self.table], [flat], counts)
        rows = tf.cast(rows, self.compute_dtype)
        return id_kinds.combined(inputs, rows, weights, self.combiner)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, of which `from_config` makes an equal layer."""
        own = {"combiner": self.combiner, "prefetch": self.prefetch}
        if self._shared_table is not None:
            return {**super().get_config(), **own, "table": self._shared_table}
        optimizer = {"optimizer": self._arguments["optimizer"].get_config()}
        of_table = {"output_dim": self.output_dim, **self._arguments, **optimizer}
        return {**super().get_config(), **own, **of_table}
