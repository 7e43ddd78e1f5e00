"""Saving a model that runs without tfdist."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist.embedding import saved_tables
from tfdist.embedding.layer_base import RemoteEmbedding
from tfdist.embedding.static_table import StaticTable
from tfdist.embedding.table import EmbeddingTable


def export_for_serving(model: Any, path: str, input_signature: Any = None) -> None:
    """Writes a model as a plain SavedModel, with the rows that its tables have now.

    It runs wherever TensorFlow runs, and answers what `model.predict` answers: each table becomes
    a static hash table and a variable, and an id without a row gives what it would begin as. Call
    it in the chief, when training has ended; this process holds all rows for a while.

    Args:
      model: a Keras 3 or tf_keras model that was built, with `tfdist.layers.Embedding` layers, or
        `EmbeddingTable`s among the attributes of its layers.
      path: the directory to write.
      input_signature: specs of the inputs, as of Keras's `model.export`; `None`: the model's.

    Raises:
      ValueError: the model has no table that was used, or an input of it is ragged.

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
        # Not in the strategy's scope: these variables are this process's own.
        for number, table in enumerate(tables):
            of_table = os.path.join(folder, str(number))
            os.mkdir(of_table)
            static = StaticTable(*table.fetch(), table.config().initializer, of_table)
            statics.append(static)
            replaced.enter_context(table.replaced_by(static))
        is_of_tf_keras = isinstance(model, tf.Module)
        archive_of = _archive_of_tf_keras if is_of_tf_keras else _archive_of_keras
        archive_of(model, statics, input_signature).write_out(path)


def export_small(
    model: Any, path: str, verbose: bool | None = None, input_signature: Any = None
) -> None:
    """As `export_for_serving`, for who may not know that the model has tables.

    Args:
      model: as of `export_for_serving`.
      path: likewise.
      verbose: whether to say where it is.
      input_signature: as of `export_for_serving`.

    Raises:
      ValueError: the rows take more than `saved_tables.MAX_BYTES`.
    """
    for table in tables_of(model):
        saved_tables.check_size(table)
    export_for_serving(model, path, input_signature)
    if verbose or verbose is None:
        print(f"Saved artifact at '{path}'.")


def tables_of(model: Any) -> list[EmbeddingTable]:
    """The tables that a model's layers have used, each once."""
    tables = []
    for layer in _layers(model):
        if isinstance(layer, RemoteEmbedding):
            tables += layer.tables
        tables += [value for value in vars(layer).values() if isinstance(value, EmbeddingTable)]
    return list(dict.fromkeys(tables))


def _layers(model: Any) -> Iterator[Any]:
    return model._flatten_layers()


def _archive_of_keras(model: Any, statics: list[StaticTable], signature: Any) -> Any:
    from keras.export import ExportArchive
    from keras.src.export.export_utils import get_input_signature

    archive = ExportArchive()
    for static in statics:
        archive.track(static)
    archive.track_and_add_endpoint("serve", model, signature or get_input_signature(model))
    return archive


def _archive_of_tf_keras(model: Any, statics: list[StaticTable], signature: Any) -> Any:
    from tf_keras.export import ExportArchive

    archive = ExportArchive()
    for resource in (model, *statics):
        archive.track(resource)
    inputs = [tf.TensorSpec(x.shape, x.dtype, x.name) for x in model.inputs]
    signature = signature or ([inputs] if len(inputs) > 1 else inputs)
    archive.add_endpoint("serve", model.__call__, signature)
    return archive
