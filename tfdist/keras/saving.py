"""What Keras writes of models with embedding tables has the rows, or is refused."""

from __future__ import annotations

import functools
import sys
from types import ModuleType

import keras
from keras.src.legacy.saving import legacy_h5_format

from tfdist.keras.table_gradients import table_of


def export_rows() -> None:
    """`model.export` would write lookups that need the servers, and none of the rows."""
    original = keras.Model.export

    @functools.wraps(original)
    def export(self, filepath, format="tf_saved_model", *args, **kwargs):
        # Not above: it imports the layers, which import this package.
        from tfdist.embedding.export import export_small, tables_of

        if not tables_of(self):
            return original(self, filepath, format, *args, **kwargs)
        if format != "tf_saved_model":
            raise ValueError(
                f"model {self.name!r}: expected format='tf_saved_model' of a model with embedding "
                f"tables, received {format!r}"
            )
        return export_small(self, str(filepath), *args, **kwargs)

    keras.Model.export = export


def refuse_whole_hdf5() -> None:
    """Files of Keras 2's form have a model's variables alone, not the state of its layers."""
    _refuse(legacy_h5_format)
    if "tf_keras" in sys.modules:
        _refuse_of_tf_keras()


@functools.cache
def _refuse_of_tf_keras() -> None:
    from tf_keras.src.saving.legacy import hdf5_format

    _refuse(hdf5_format)


def _refuse(module: ModuleType) -> None:
    original = module._legacy_weights

    @functools.wraps(original)
    def _legacy_weights(layer):
        weights = original(layer)
        tables = [table for w in weights if (table := table_of(w)) is not None]
        if tables:
            raise ValueError(
                f"layer {layer.name!r}: expected a file that ends in '.keras' or '.weights.h5', or "
                "tf.train.Checkpoint, for a model with embedding tables: other HDF5 files have no "
                "place for the rows"
            )
        return weights

    module._legacy_weights = _legacy_weights
