"""The embedding layers for Keras 3."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist._types import AnyTensor
from tfdist.embedding.field_wise_base import RemoteFieldWise
from tfdist.embedding.layer_base import (
    ROWS_OF_TABLE,
    RemoteEmbedding,
    Store,
    load_rows,
    save_rows,
)
from tfdist.embedding.table import ROWS, EmbeddingTable
from tfdist.ps.variable_scopes import Role, made_as
from tfdist.strategies._variables.table_variable import TableVariable

_TABLE = "table"
keras.saving.register_keras_serializable("tfdist")(EmbeddingTable)


def _arguments_of(cls: type) -> str:
    """The arguments in a class's description, of which `python -OO` keeps nothing."""
    return "".join((cls.__doc__ or "").partition("Args:")[1:])


class _SharedRows(keras.layers.Layer):
    """A sublayer of all layers that share a table, so that Keras saves its rows once."""

    def __init__(self, table: EmbeddingTable) -> None:
        super().__init__(name="shared_rows")
        self.table = table
        self.built = True

    @classmethod
    def of(cls, table: EmbeddingTable) -> _SharedRows:
        """Returns the object of a table, and makes it on first use."""
        if not hasattr(table, "shared_rows"):
            table.shared_rows = cls(table)
        return table.shared_rows

    def save_own_variables(self, store: Store) -> None:
        """Saves the rows, which it fetches from the servers."""
        if self.table.is_used:
            save_rows(store, self.table)

    def load_own_variables(self, store: Store) -> None:
        """Sends the saved rows to the servers."""
        load_rows(store, self.table)


@keras.saving.register_keras_serializable("tfdist")
class Embedding(RemoteEmbedding, keras.layers.Layer):
    __doc__ = f"""Looks up rows of a table, each of which is stored by one process of the job.

    The rows are on the `ps` tasks; in a job without any they are dealt over the workers by id. Ids
    are integers or strings: dense of any shape, ragged, or sparse of two dimensions. Make the layer
    in the scope of a `tfdist.ParameterServerStrategy` or a `tfdist.MultiWorkerMirroredStrategy`. In
    `fit` an id gets a row on first use; in `evaluate` and `predict` an id without a row gets its
    initial values.

    {_arguments_of(RemoteEmbedding)}
    Raises:
      ValueError: an argument is invalid; names the expected value.

    Example:

    ```python
    with strategy.scope():
        user = keras.Input((), dtype="string")
        row = tfdist.layers.Embedding(output_dim=16)(user)
    ```
    """

    def build(self, input_shape: tf.TensorShape | tuple | None = None) -> None:
        """Makes the variable that represents the table."""
        if self._shared_table is None:
            self.rows = self._make_rows((0, self.output_dim), ROWS)
            self._check_name(self._variable())
        else:
            self.rows = self._rows_of(self._shared_table)
        self.built = True

    def call(
        self, inputs: AnyTensor, weights: AnyTensor | None = None, training: bool | None = None
    ) -> tf.Tensor | tf.RaggedTensor:
        """Looks up rows.

        Args:
          inputs: ids.
          weights: like `inputs`: the factors of the rows.
          training: whether ids count as seen, and get rows.

        Returns:
          The rows, of the shape of `inputs` and `output_dim`, without the last dimension of
          `inputs` if there is a combiner.
        """
        return self._look_up(inputs, weights, training)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Embedding:
        """Makes a layer from the result of `get_config`, also after Keras has saved it."""
        # Keras restores which layers of a model share a table.
        shared = {
            name: keras.saving.deserialize_keras_object(config[name])
            for name in ("table", "tables")
            if isinstance(config.get(name), dict | list | tuple)
        }
        return super().from_config({**config, **shared})

    def save_own_variables(self, store: Store) -> None:
        """Saves the table's name, and its rows, which it fetches from the servers."""
        super().save_own_variables(store)
        if self._own_table is not None:
            store[_TABLE] = np.frombuffer(self._own_table.name.encode(), np.uint8)
            save_rows(store, self._own_table)

    def load_own_variables(self, store: Store) -> None:
        """Takes the saved table's name, and sends its rows to the servers."""
        names = list(store.keys())
        own = (_TABLE, ROWS_OF_TABLE)
        super().load_own_variables({n: store[n] for n in names if not n.startswith(own)})
        if _TABLE in names and self._shared_table is None:
            name, variable = bytes(np.array(store[_TABLE])).decode(), self._variable()
            if isinstance(variable, TableVariable) and variable.is_taken(name):
                name = self._name_of_table(variable)  # another table has the saved name
            self._use_table(name)
            load_rows(store, self.table)

    def _make_rows(self, shape: tuple[int, int], name: str) -> keras.Variable:
        with made_as(Role.TABLE):
            return self.add_weight(
                shape=shape,
                name=name,
                dtype="float32",
                initializer="zeros",
                trainable=True,
                autocast=False,
            )

    def _rows_of(self, table: EmbeddingTable) -> keras.Variable:
        """Returns the variable that represents a shared table."""

        def make(shape: tuple[int, int], name: str) -> keras.Variable:
            # Keras allows no "/" in a scope's name.
            with keras.name_scope(table.scope_name.replace("/", "_")):
                return keras.Variable("zeros", shape, "float32", name=name, autocast=False)

        return table.weight(make)

    def _share(self, table: EmbeddingTable) -> None:
        self.shared_rows = _SharedRows.of(table)

    def _variable(self) -> tf.Variable | None:
        return self.rows._value


@keras.saving.register_keras_serializable("tfdist")
class FieldWiseEmbedding(RemoteFieldWise, Embedding):
    __doc__ = f"""Embeds several categorical fields in the columns of one tensor.

    The input is ids of shape (batch, columns), integers or strings. The output has the shape
    (batch, slots, output_dim): the combined rows of each slot's columns. The ids of different slots
    are
    different: each slot has its own table, or all share one table with different rows per slot
    (see `tfdist.embedding.field_ids`). Each server receives one message for all columns.

    {_arguments_of(RemoteFieldWise)}
    Raises:
      ValueError: an argument is invalid; names the expected value.

    Example:

    ```python
    with strategy.scope():
        categories = keras.Input((26,), dtype="int64")
        rows = tfdist.layers.FieldWiseEmbedding(output_dim=16)(categories)  # (batch, 26, 16)
    ```
    """

    def build(self, input_shape: tf.TensorShape | tuple | None = None) -> None:
        """Makes the variables that represent the tables."""
        if self._slot_tables is not None:
            self.shared_rows_by_slot = [_SharedRows.of(table) for table in self._slot_tables]
        super().build(input_shape)
        if self._slot_tables is not None:
            self.rows_by_slot = [self._rows_of(table) for table in self._slot_tables]
