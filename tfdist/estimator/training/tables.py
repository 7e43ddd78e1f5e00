"""An `Estimator`'s embedding tables: saved beside checkpoints, and read by tasks that do not train.

A model_fn makes its `tfdist.EmbeddingTable`s in every mode. In training they are on the parameter
servers. A process that only evaluates, predicts or exports uses the rows that the chief has saved
beside the checkpoint; in a process that trains, these modes use the rows of the servers.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import tensorflow as tf

from tfdist.embedding.static_table import StaticTable
from tfdist.embedding.table import EmbeddingTable, reader
from tfdist.errors import CheckpointError
from tfdist.ps.export import files
from tfdist.strategies import ParameterServerStrategy
from tfdist.strategies._variables.parameters import Parameters
from tfdist.strategies._variables.table_variable import TableVariable

if TYPE_CHECKING:
    from tensorflow_estimator.python.estimator.api._v2.estimator import Estimator

_SUFFIX = ".tables"


def save(parameters: Parameters, checkpoint: str) -> None:
    """Writes all rows of the default graph's tables, before the checkpoint itself is written.

    Args:
      parameters: the strategy's.
      checkpoint: the path of the future checkpoint.
    """
    specs = _tables_of(parameters)
    if not specs:
        return
    folder = checkpoint + _SUFFIX
    tf.io.gfile.makedirs(folder)
    for spec in specs:
        spec.export_table(_file_of(folder, spec.name), slots=True)


def remove_old(directory: str) -> None:
    """Deletes saved rows whose checkpoint is no longer in a directory."""
    for folder in tf.io.gfile.glob(os.path.join(directory, f"*{_SUFFIX}")):
        if not tf.io.gfile.exists(folder.removesuffix(_SUFFIX) + ".index"):
            tf.io.gfile.rmtree(folder)


def restore(parameters: Parameters, checkpoint: str) -> None:
    """Imports the rows that were saved with a checkpoint to the servers.

    Raises:
      CheckpointError: their files do not exist.
    """
    for spec in _tables_of(parameters):
        spec.import_table(_saved_rows(checkpoint, spec))


def _tables_of(parameters: Parameters) -> list[EmbeddingTable]:
    variables = [v for v in parameters.variables() if isinstance(v, TableVariable)]
    return [v.spec for v in variables if v.spec is not None]


def read_without_training(estimator: type[Estimator]) -> None:
    """Gives an `Estimator` the rows of its tables when it evaluates, predicts and exports."""
    evaluate, export = estimator._actual_eval, estimator._export_all_saved_models
    predict = estimator.predict

    def rows_for(
        use: Callable, method: Callable, *args: object, **kwargs: object
    ) -> contextlib.AbstractContextManager[None]:
        given = inspect.signature(method).bind(*args, **kwargs).arguments
        return _rows_of(given["self"], given.get("checkpoint_path"), use)

    @functools.wraps(evaluate)
    def _actual_eval(*args, **kwargs):
        with rows_for(_from_servers, evaluate, *args, **kwargs):
            return evaluate(*args, **kwargs)

    @functools.wraps(predict)
    def predict_with_rows(*args, **kwargs):
        with rows_for(_from_servers, predict, *args, **kwargs):
            yield from predict(*args, **kwargs)

    @functools.wraps(export)
    def _export_all_saved_models(*args, **kwargs):
        with rows_for(_in_the_model, export, *args, **kwargs):
            return export(*args, **kwargs)

    estimator._actual_eval = _actual_eval
    estimator.predict = predict_with_rows
    estimator._export_all_saved_models = _export_all_saved_models


@contextlib.contextmanager
def _rows_of(estimator: Estimator, checkpoint: str | None, use: Callable) -> Iterator[None]:
    """Gives new tables the rows of a checkpoint, or the rows that this process trains.

    Args:
      estimator: its `RunConfig` has the strategy.
      checkpoint: `None` is the latest one.
      use: makes a table usable, given it, the strategy, its id, and a folder for files.
    """
    strategy = estimator.config.train_distribute or estimator.config.eval_distribute
    if not isinstance(strategy, ParameterServerStrategy):
        yield
        return
    parameters = strategy.extended.parameters
    checkpoint = checkpoint or estimator.latest_checkpoint()

    def prepare(table: EmbeddingTable) -> None:
        config = table.config()
        table_id = parameters.add_table(table.name, config)
        if strategy.extended.is_alone and not parameters.has_trained and checkpoint is not None:
            path = _saved_rows(checkpoint, table)
            files.import_table(parameters.client, table_id, config, path)
        use(table, strategy, table_id, folder)

    with tempfile.TemporaryDirectory(prefix="tfdist-") as folder:
        token = reader.set(prepare)
        try:
            yield
        finally:
            reader.reset(token)


def _from_servers(
    table: EmbeddingTable, strategy: ParameterServerStrategy, table_id: int, folder: str
) -> None:
    table.strategy = strategy


def _in_the_model(
    table: EmbeddingTable, strategy: ParameterServerStrategy, table_id: int, folder: str
) -> None:
    """Puts the rows into the model: serving has no parameter servers."""
    config = table.config()
    ids, rows = files.fetch(strategy.extended.parameters.client, table_id, config)
    of_table = tempfile.mkdtemp(dir=folder)
    table.static = StaticTable(ids, rows, config.initializer, of_table)


def _saved_rows(checkpoint: str, table: EmbeddingTable) -> str:
    path = _file_of(checkpoint + _SUFFIX, table.name)
    if not tf.io.gfile.exists(path):
        raise CheckpointError(
            f"{path}: expected the rows of embedding table {table.name!r} that belong to "
            f"{os.path.basename(checkpoint)}, and found no such file"
        )
    return path


def _file_of(folder: str, name: str) -> str:
    return os.path.join(folder, re.sub(r"[^A-Za-z0-9_.-]", "_", name) + ".npz")
