"""Saving of Keras models with embedding tables: with their rows, or refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras

from tfdist._types import KerasLayer
from tfdist.internals.keras_3 import legacy_h5_format
from tfdist.keras.embeddings import provided
from tfdist.keras.hooks.table_gradients import table_of
from tfdist.keras.registry import hooks

if TYPE_CHECKING:
    pass


@hooks(keras.Model, "export")
def export_rows(original, self, filepath, format="tf_saved_model", *args, **kwargs):
    """`model.export` writes the rows of embedding tables into the SavedModel.

    Keras would write lookups that need the servers, and no rows.
    """
    embeddings = provided()
    if embeddings is None or not embeddings.tables_of(self):
        return original(self, filepath, format, *args, **kwargs)
    if format != "tf_saved_model":
        raise ValueError(
            f"model {self.name!r}: expected format='tf_saved_model' of a model with embedding "
            f"tables, received {format!r}"
        )
    return embeddings.export(self, str(filepath), *args, **kwargs)


@hooks(legacy_h5_format, "_legacy_weights")
def refuse_whole_hdf5(original, layer):
    """Files of Keras 2's HDF5 form are refused for models with embedding tables.

    They have a model's variables alone, not the state of its layers.
    """
    weights = original(layer)
    refuse_tables(layer, weights)
    return weights


def refuse_tables(layer: KerasLayer, weights: Any) -> None:
    """Raises ValueError if one of a layer's weights stands for a table."""
    if any(table_of(weight) is not None for weight in weights):
        raise ValueError(
            f"layer {layer.name!r}: expected a file that ends in '.keras' or '.weights.h5', or "
            "tf.train.Checkpoint, for a model with embedding tables: other HDF5 files have no "
            "place for the rows"
        )
