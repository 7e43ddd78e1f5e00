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
from tfdist.embedding.served_table import ServedTable
from tfdist.embedding.static_table import StaticTable
from tfdist.embedding.table import EmbeddingTable
from tfdist.ps.export import served_models
from tfdist.strategies._variables.server_variable import ServerVariable
from tfdist.strategies._variables.table_variable import TableVariable

if TYPE_CHECKING:
    from keras.export import ExportArchive


def export_for_serving(
    model: KerasModel,
    path: str,
    input_signature: Sequence[tf.TensorSpec] | None = None,
    tables: str = "inside",
) -> None:
    """Writes a model as a SavedModel, with the current rows of its tables, or without rows.

    With the rows inside, the SavedModel needs only TensorFlow and gives the results of
    `model.predict`: each table becomes a static hash table and a variable, and an id without a row
    gets its initial values. Call it in the chief, when training has ended; this process holds all
    rows for a while.

    With served tables the SavedModel has the model's variables alone, of whatever size its tables
    are. `tfdist.serving.load` binds it to servers of a snapshot's rows (`tfdist ps serve`).

    Args:
      model: a built Keras 3 or tf_keras model with `tfdist.layers.Embedding` layers, or with
        `EmbeddingTable`s as attributes of its layers.
      path: the directory to write.
      input_signature: specs of the inputs, as in Keras's `model.export`; `None`: the model's.
      tables: "inside" writes the rows into the SavedModel; "served" leaves them on servers.

    Raises:
      ValueError: the model has used no table, or has a ragged input; or `tables` is another word.

    Example:

    ```python
    tfdist.export_for_serving(model, "served")
    answers = tf.saved_model.load("served").serve(ids)  # without tfdist
    ```
    """
    if tables not in ("inside", "served"):
        raise ValueError(
            f"export_for_serving: expected tables to be 'inside' or 'served', received {tables!r}"
        )
    used = tables_of(model)
    if not used:
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
    if tables == "served":
        return _export_without_rows(model, path, used, input_signature)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as replaced:
        statics = []
        # Not in the strategy's scope: these variables belong to this process alone.
        for i, table in enumerate(used):
            table_folder = os.path.join(folder, str(i))
            os.mkdir(table_folder)
            static = StaticTable(*table.fetch(), table.config().initializer, table_folder)
            statics.append(static)
            replaced.enter_context(table.replaced_by(static))
        _archive_of(model, statics, input_signature).write_out(path)


def _export_without_rows(
    model: KerasModel,
    path: str,
    used: Sequence[EmbeddingTable],
    signature: Sequence[tf.TensorSpec] | None,
) -> None:
    client = tf.Variable(0, dtype=tf.int64, trainable=False, name=served_models.CLIENT)
    with contextlib.ExitStack() as replaced:
        tables = [ServedTable(table.name, table.output_dim, client) for table in used]
        for table, served in zip(used, tables, strict=True):
            replaced.enter_context(table.replaced_by(served))
        archive = _archive_of(model, tables, signature)
        archive.add_variable_collection(served_models.CLIENT, [client])
        archive.write_out(path)
    widths = {table.name: table.output_dim for table in used}
    served_models.ServedModelFile(widths, _names_on_servers(model)).write(path)


def _names_on_servers(model: KerasModel) -> list[str | None]:
    """Returns the servers' name of each of the model's variables; `None` if they have none."""
    names: list[str | None] = []
    for weight in model.variables:
        variable = weight if isinstance(weight, tf.Variable) else weight.value
        is_shared = isinstance(variable, ServerVariable) and not isinstance(variable, TableVariable)
        names.append(variable.name_on_servers if is_shared else None)
    return names


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


def _archive_of(
    model: KerasModel,
    statics: Sequence[StaticTable | ServedTable],
    signature: Sequence[tf.TensorSpec] | None,
) -> ExportArchive:
    is_of_tf_keras = isinstance(model, tf.Module)
    archive_of = _archive_of_tf_keras if is_of_tf_keras else _archive_of_keras
    return archive_of(model, statics, signature)


def _archive_of_keras(
    model: KerasModel,
    statics: Sequence[StaticTable | ServedTable],
    signature: Sequence[tf.TensorSpec] | None,
) -> ExportArchive:
    from keras.export import ExportArchive
    from keras.src.export.export_utils import get_input_signature

    archive = ExportArchive()
    for static in statics:
        archive.track(static)
    archive.track_and_add_endpoint("serve", model, signature or get_input_signature(model))
    return archive


def _archive_of_tf_keras(
    model: KerasModel,
    statics: Sequence[StaticTable | ServedTable],
    signature: Sequence[tf.TensorSpec] | None,
) -> ExportArchive:
    from tf_keras.export import ExportArchive

    archive = ExportArchive()
    for resource in (model, *statics):
        archive.track(resource)
    inputs = [tf.TensorSpec(x.shape, x.dtype, x.name) for x in model.inputs]
    signature = signature or ([inputs] if len(inputs) > 1 else inputs)
    archive.add_endpoint("serve", model.__call__, signature)
    return archive
