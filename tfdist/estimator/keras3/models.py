"""Converts models of Keras 3 to tf_keras, for the package's `model_to_estimator`."""

from __future__ import annotations

import functools
import json
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import tf_keras

from tfdist._types import FilePath, KerasLayer, KerasModel
from tfdist.estimator.keras3.optimizers import legacy_optimizer

if TYPE_CHECKING:
    import keras


def convert_models() -> None:
    """Makes the package's `model_to_estimator` accept the models that `to_tf_keras` accepts."""
    from tensorflow_estimator.python.estimator import keras_lib

    original = keras_lib.model_to_estimator

    @functools.wraps(original)
    def model_to_estimator(
        keras_model=None, keras_model_path=None, custom_objects=None, *args, **kwargs
    ):
        if keras_model is None and _is_saved_by_keras_3(keras_model_path):
            keras_model, keras_model_path = _load(keras_model_path, custom_objects or {}), None
        keras_model = to_tf_keras(keras_model, custom_objects)
        return original(keras_model, keras_model_path, custom_objects, *args, **kwargs)

    keras_lib.model_to_estimator = model_to_estimator


def convert_cells() -> None:
    """Makes the package's recurrent estimators accept cells of Keras 3 from `rnn_cell_fn`."""
    from tensorflow_estimator.python.estimator.canned import rnn

    original = rnn._make_rnn_layer

    @functools.wraps(original)
    def _make_rnn_layer(rnn_cell_fn, *args, **kwargs):
        convert = rnn_cell_fn and (lambda: _cell(rnn_cell_fn()))
        return original(convert, *args, **kwargs)

    rnn._make_rnn_layer = _make_rnn_layer


def _cell(cell: keras.Layer) -> KerasLayer:
    if not _is_of_keras_3(cell, "Layer"):
        return cell
    from tfdist.estimator.keras3.layers import convert_layer

    return convert_layer(cell, {})


def _is_of_keras_3(made: object, kind: str) -> bool:
    # An object of Keras 3 exists only if Keras 3 was imported.
    keras = sys.modules.get("keras")
    return keras is not None and keras is not tf_keras and isinstance(made, getattr(keras, kind))


def _is_saved_by_keras_3(path: FilePath | None) -> bool:
    if path is None or not Path(path).is_file():
        return False
    version = ""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            version = json.loads(archive.read("metadata.json"))["keras_version"]
    elif h5py.is_hdf5(path):
        with h5py.File(path) as archive:
            version = archive.attrs.get("keras_version", "")
    return version.startswith("3.")


def _load(path: FilePath | None, custom_objects: dict[str, type]) -> keras.Model:
    import keras

    return keras.saving.load_model(
        path,
        {name: made for name, made in custom_objects.items() if not _is_layer_of_tf_keras(made)},
    )


def _is_layer_of_tf_keras(made: object) -> bool:
    return isinstance(made, type) and issubclass(made, tf_keras.layers.Layer)


def to_tf_keras(model: KerasModel, custom_objects: dict[str, type] | None = None) -> tf_keras.Model:
    """Makes a tf_keras model that computes the same as a model of Keras 3, with the same weights.

    Layers and outputs keep their names. If the model is compiled, so is the new one, with the same
    loss and metrics and the legacy optimizer that computes the same. The state of the optimizer is
    not copied.

    Args:
      model: a `keras.Sequential` or functional `keras.Model` of Keras 3 whose input shapes are
        known; anything else is returned as it is.
      custom_objects: classes of tf_keras by the names of the user's own layers of Keras 3.

    Raises:
      TypeError: the model, or one of its layers, is of a class that tf_keras does not have.
      ValueError: a layer's config has no counterpart, or the shape of the inputs is not known.
    """
    if not _is_of_keras_3(model, "Model"):
        return model
    from tfdist.estimator.keras3 import compiled, graphs

    converted = graphs.convert_graph(model, custom_objects or {})
    if model.compiled:
        arguments = compiled.convert_compiled(model)
        converted.compile(legacy_optimizer(model.optimizer), **arguments)
    return converted
