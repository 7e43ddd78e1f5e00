"""The embedding layers for tf_keras."""

from __future__ import annotations

import tensorflow as tf
import tf_keras

from tfdist._types import AnyTensor
from tfdist.embedding.field_wise_base import RemoteFieldWise
from tfdist.embedding.layer_base import (
    ROWS_OF_TABLE,
    RemoteEmbedding,
    Store,
    load_rows,
    save_rows,
)
from tfdist.embedding.table import ROWS
from tfdist.keras import repair_tables_of_tf_keras
from tfdist.ps.variable_scopes import Role, made_as

repair_tables_of_tf_keras()


@tf_keras.saving.register_keras_serializable("tfdist")
class Embedding(RemoteEmbedding, tf_keras.layers.Layer):
    """As `tfdist.layers.Embedding`, for models of tf_keras."""

    def build(self, input_shape: tf.TensorShape | tuple | None = None) -> None:
        """Makes the variable that represents the table."""
        if self._shared_table is None:
            self.rows = self._make_rows((0, self.output_dim), ROWS)
            self._check_name(self._variable())
        else:
            self.rows = self._shared_table.weight(self._make_rows)
        self.built = True

    def call(
        self, inputs: AnyTensor, weights: AnyTensor | None = None, training: bool | None = None
    ) -> tf.Tensor | tf.RaggedTensor:
        """As `tfdist.layers.Embedding.call`."""
        return self._look_up(inputs, weights, training)

    def save_own_variables(self, store: Store) -> None:
        """Saves the layer's rows, which it fetches from the servers, in a `.keras` file."""
        super().save_own_variables(store)
        for i, table in enumerate(self.tables):
            if table.is_used:
                save_rows(store, table, f"{ROWS_OF_TABLE}{i}_")

    def load_own_variables(self, store: Store) -> None:
        """Sends the saved rows to the servers."""
        names = [name for name in store.keys() if not name.startswith(ROWS_OF_TABLE)]  # noqa: SIM118
        super().load_own_variables({name: store[name] for name in names})
        if len(names) < len(store.keys()):
            if not self.has_table:
                self._use_table(self._name_of_table(self._variable()))
            for i, table in enumerate(self.tables):
                load_rows(store, table, f"{ROWS_OF_TABLE}{i}_")

    def _make_rows(self, shape: tuple[int, int], name: str) -> tf.Variable:
        with made_as(Role.TABLE):
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

    def build(self, input_shape: tf.TensorShape | tuple | None = None) -> None:
        """Makes the variables that represent the tables."""
        super().build(input_shape)
        if self._slot_tables is not None:
            self.rows_by_slot = [table.weight(self._make_rows) for table in self._slot_tables]
