"""The embedding layers for tf_keras."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras

from tfdist.keras import legacy_tables
from tfdist.layers.remote_embedding import RemoteEmbedding
from tfdist.layers.remote_field_wise import RemoteFieldWise
from tfdist.strategies.table_variable import ROWS

legacy_tables.send_rows_to_servers()


@tf_keras.saving.register_keras_serializable("tfdist")
class Embedding(RemoteEmbedding, tf_keras.layers.Layer):
    """As `tfdist.layers.Embedding`, for models of tf_keras."""

    def build(self, input_shape: Any = None) -> None:
        """Makes the variable that stands for the table."""
        if self._shared_table is None:
            self.rows = self._make_rows((0, self.output_dim), ROWS)
        else:
            self.rows = self._shared_table.weight(self._make_rows)
        self.built = True

    def call(self, inputs: Any, weights: Any = None, training: bool | None = None) -> Any:
        """As `tfdist.layers.Embedding.call`."""
        return self._look_up(inputs, weights, training)

    def _make_rows(self, shape: tuple[int, int], name: str) -> tf.Variable:
        return self.add_weight(
            name=name,
            shape=shape,
            dtype="float32",
            initializer="zeros",
            experimental_autocast=False,
        )

    def _variable(self) -> tf.Variable:
        return self.rows


@tf_keras.saving.register_keras_serializable("tfdist")
class FieldWiseEmbedding(RemoteFieldWise, Embedding):
    """As `tfdist.layers.FieldWiseEmbedding`, for models of tf_keras."""

    def build(self, input_shape: Any = None) -> None:
        """Makes the variables that stand for the tables."""
        super().build(input_shape)
        if self._slot_tables is not None:
            self.rows_by_slot = [table.weight(self._make_rows) for table in self._slot_tables]
