"""Export of a model that runs without tfdist."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tfdist._types import KerasLayer, KerasModel
from tfdist.embedding import saved_tables
from tfdist.embedding.layer_base import RemoteEmbedding
from tfdist.embedding.static_table import StaticTable
from tfdist.embedding.table import EmbeddingTable

if TYPE_CHECKING:
    from keras.export import ExportArchive


def export_for_serving(
    model: KerasModel, path: str, input_signature: Sequence[tf.TensorSpec] | None = None
) -> None:
    """Writes a model as a plain SavedModel, with the current rows of its tables.

    The SavedModel needs only TensorFlow and gives the results of `model.predict`: each table
    becomes a static hash table and a variable, and an id without a row gets its initial values.
    Call it in the chief, when training has ended; this process holds all rows for a while.

    Args:
      model: a built Keras 3 or tf_keras model with `tfdist.layers.Embedding` layers, or with
        `EmbeddingTable`s as attributes of its layers.
      path: the directory to write.
      input_signature: specs of the inputs, as in Keras's `model.export`; `None`: the model's.

    Raises:
      ValueError: the model has used no table, or has a ragged input.

    Example:

    ```python
    tfdist.export_for_serving(model, "served")
    answers = tf.saved_model.load("served").serve(ids)  # without tfdist
    ```
    """
    tables = tables_of(model)
    if not tables:
        raise ValueError(
            f"export_for_serving: expected model {model.name!r} to have embedding tables that it "
            "has used, and found none; model.export saves it"
        )
    ragged = [x.name for x in tf.nest.flatten(model.inputs) if getattr(x, "ragged", False)]
    if ragged:
        raise ValueError(
            f"export_for_serving: expected inputs that are dense, but {', '.join(ragged)} of model "
            f"{model.name!r} is ragged, and would be served as if it were not: give the layers "
            "dense ids with weights of 0 where there is none"
        )
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as replaced:
        statics = []
        # Not in the strategy's scope: these variables belong to this process alone.
        for i, table in enumerate(tables):
            table_folder = os.path.join(folder, str(i))
            os.mkdir(table_folder)
            static = StaticTable(*table.fetch(), table.config().initializer, table_folder)
            statics.append(static)
            replaced.enter_context(table.replaced_by(static))
        is_of_tf_keras = isinstance(model, tf.Module)
        archive_of = _archive_of_tf_keras if is_of_tf_keras else _archive_of_keras
        archive_of(model, statics, input_signature).write_out(path)


def export_small(
    model: KerasModel,
    path: str,
    verbose: bool | None = None,
    input_signature: Sequence[tf.TensorSpec] | None = None,
) -> None:
    """Exports as `export_for_serving`, but refuses large tables; for Keras's own `model.export`.

    Args:
      model: as for `export_for_serving`.
      path: the directory to write.
      verbose: whether to print the path; `None`: yes.
      input_signature: as for `export_for_serving`.

    Raises:
      ValueError: the rows take more than `saved_tables.MAX_BYTES`.
    """
    for table in tables_of(model):
        saved_tables.check_size(table)
    export_for_serving(model, path, input_signature)
    if verbose or verbose is None:
        print(f"Saved artifact at '{path}'.")


def tables_of(model: KerasModel) -> list[EmbeddingTable]:
    """Returns the tables that a model's layers have used, each once."""
    tables = []
    for layer in _layers(model):
        if isinstance(layer, RemoteEmbedding):
            tables += layer.tables
        tables += [value for value in vars(layer).values() if isinstance(value, EmbeddingTable)]
    return list(dict.fromkeys(tables))


def _layers(model: KerasModel) -> Iterator[KerasLayer]:
    return model._flatten_layers()


def _archive_of_keras(
    model: KerasModel, statics: list[StaticTable], signature: Sequence[tf.TensorSpec] | None
) -> ExportArchive:
    from keras.export import ExportArchive
    from keras.src.export.export_utils import get_input_signature

    archive = ExportArchive()
    for static in statics:
        archive.track(static)
    archive.track_and_add_endpoint("serve", model, signature or get_input_signature(model))
    return archive


def _archive_of_tf_keras(
    model: KerasModel, statics: list[StaticTable], signature: Sequence[tf.TensorSpec] | None
) -> ExportArchive:
    from tf_keras.export import ExportArchive

    archive = ExportArchive()
    for resource in (model, *statics):
        archive.track(resource)
    inputs = [tf.TensorSpec(x.shape, x.dtype, x.name) for x in model.inputs]
    signature = signature or ([inputs] if len(inputs) > 1 else inputs)
    archive.add_endpoint("serve", model.__call__, signature)
    return archive
