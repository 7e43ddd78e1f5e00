"""The embedding layer for Keras 3."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.embedding.table import EmbeddingTable
from tfdist.layers.remote_embedding import (
    ROWS_OF_TABLE,
    RemoteEmbedding,
    load_rows,
    save_rows,
)
from tfdist.strategies.table_variable import ROWS

_TABLE = "table"
keras.saving.register_keras_serializable("tfdist")(EmbeddingTable)


class _SharedRows(keras.layers.Layer):
    """Part of all layers that share a table, so that Keras saves its rows once."""

    def __init__(self, table: EmbeddingTable) -> None:
        super().__init__(name="shared_rows")
        self.table = table
        self.built = True

    @classmethod
    def of(cls, table: EmbeddingTable) -> _SharedRows:
        """Returns the one of a table."""
        if not hasattr(table, "shared_rows"):
            table.shared_rows = cls(table)
        return table.shared_rows

    def save_own_variables(self, store: Any) -> None:
        """Saves the rows, which the servers are asked for."""
        if self.table.is_used:
            save_rows(store, self.table)

    def load_own_variables(self, store: Any) -> None:
        """Gives the servers the rows."""
        load_rows(store, self.table)


@keras.saving.register_keras_serializable("tfdist")
class Embedding(RemoteEmbedding, keras.layers.Layer):
    __doc__ = f"""Turns ids into rows of a table that lives on the parameter servers alone.

    Ids are integers or strings: dense of any shape, ragged, or sparse of two dimensions. Make the
    layer in the scope of a `tfdist.ParameterServerStrategy`, or of a
    `tfdist.MultiWorkerMirroredStrategy` whose cluster has `ps` tasks. In `fit` an id gets a row on
    first use; in `evaluate` and `predict` an id without one gives what it would begin as.

    {RemoteEmbedding.__doc__.partition("Args:")[1]}{RemoteEmbedding.__doc__.partition("Args:")[2]}
    Raises:
      ValueError: an argument makes no sense; says what was expected.

    Example:

    ```python
    with strategy.scope():
        user = keras.Input((), dtype="string")
        row = tfdist.layers.Embedding(output_dim=16)(user)
    ```
    """

    def build(self, input_shape: Any = None) -> None:
        """Makes the variable that stands for the table."""
        if self._shared_table is None:
            self.rows = self._make_rows((0, self.output_dim), ROWS)
        else:
            self.rows = self._shared_table.weight(self._make_shared_rows)
        self.built = True

    def call(self, inputs: Any, weights: Any = None, training: bool | None = None) -> Any:
        """Looks up rows.

        Args:
          inputs: ids.
          weights: like `inputs`; rows are multiplied with them.
          training: whether ids count as seen, and get rows.

        Returns:
          Of the shape of `inputs` and `output_dim`, without the last dimension of `inputs` if there
          is a combiner.
        """
        return self._look_up(inputs, weights, training)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Embedding:
        """Makes a layer of what `get_config` returns, also after Keras has saved it."""
        config = dict(config)
        if isinstance(config.get("table"), dict):
            # Keras knows which layers of a model share it.
            config["table"] = keras.saving.deserialize_keras_object(config["table"])
        return super().from_config(config)

    def save_own_variables(self, store: Any) -> None:
        """Saves which table it is, and its rows, which the servers are asked for."""
        super().save_own_variables(store)
        if self._own_table is not None:
            store[_TABLE] = np.frombuffer(self._own_table.name.encode(), np.uint8)
            save_rows(store, self._own_table)

    def load_own_variables(self, store: Any) -> None:
        """Takes the table that was saved, and gives the servers its rows."""
        names = list(store.keys())
        own = (_TABLE, ROWS_OF_TABLE)
        super().load_own_variables({n: store[n] for n in names if not n.startswith(own)})
        if _TABLE in names and self._shared_table is None:
            self._use_table(bytes(np.array(store[_TABLE])).decode())
            load_rows(store, self._own_table)

    def _make_rows(self, shape: tuple[int, int], name: str) -> keras.Variable:
        return self.add_weight(
            shape=shape,
            name=name,
            dtype="float32",
            initializer="zeros",
            trainable=True,
            autocast=False,
        )

    def _make_shared_rows(self, shape: tuple[int, int], name: str) -> keras.Variable:
        with keras.name_scope(self._shared_table.name):
            return keras.Variable("zeros", shape, "float32", name=name, autocast=False)

    def _share(self, table: EmbeddingTable) -> None:
        self.shared_rows = _SharedRows.of(table)

    def _variable(self) -> tf.Variable | None:
        return self.rows._value
