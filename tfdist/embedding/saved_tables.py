"""The rows of a table in models that Keras and TensorFlow save."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tfdist.ops.ps.client import ParameterClient
from tfdist.ops.ps.table_config import TableConfig
from tfdist.ps.export import files
from tfdist.ps.export.columns import no_rows
from tfdist.strategies._variables.table_variable import TableVariable

if TYPE_CHECKING:
    pass

# One process holds several copies of a saved model in memory.
MAX_BYTES = 1 << 30


class SavableTable(Protocol):
    """An `EmbeddingTable`, as far as saving needs it."""

    name: str
    output_dim: int
    save_rows: bool
    reset_slots: bool

    @property
    def rows(self) -> TableVariable:
        """The rows on the servers."""

    def config(self) -> TableConfig:
        """Returns the configuration on the servers."""

    def on_servers(self) -> tuple[ParameterClient, int, TableConfig]:
        """Returns the connections, the table's id and its configuration."""

    def clear(self) -> None:
        """Removes all rows."""


def columns_of(table: SavableTable) -> dict[str, np.ndarray]:
    """Fetches a table's rows, with the optimizer's slots, from the servers.

    Args:
      table: a table on servers. With `save_rows=False` the result has no rows.

    Returns:
      The columns: `ids` int64[n], each once; `values` float32[n, output_dim]; `slots`
      float32[n, m]; `used` and `counts` uint32[n]; and `slot_names` uint8[k], JSON with the number
      of floats of each slot by name.

    Raises:
      ValueError: the rows take more than `MAX_BYTES`.
      tf.errors.OpError: a server does not answer.
    """
    none = no_rows(table.output_dim)
    if not table.save_rows:
        return none
    chunks = list(_chunks(table, slots=True))
    whole = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
    # A row that was evicted and created again meanwhile occurs twice.
    _, last = np.unique(whole["ids"][::-1], return_index=True)
    latest = {name: column[::-1][last] for name, column in whole.items()}
    latest["slot_names"] = np.frombuffer(json.dumps(table.config().slots()).encode(), np.uint8)
    return {**none, "slots": np.zeros([len(last), 0], np.float32), **latest}


def check_size(table: SavableTable) -> None:
    """Raises ValueError if a table's rows, without slots, take more than `MAX_BYTES`."""
    for _ in _chunks(table, slots=False):
        pass


def _chunks(table: SavableTable, slots: bool) -> Iterator[dict[str, np.ndarray]]:
    client, table_id, config = table.on_servers()
    size = 0
    for columns in files.columns_of(client, table_id, config.width, slots):
        size += sum(column.nbytes for column in columns.values())
        if size > MAX_BYTES:
            raise ValueError(
                f"embedding table {table.name!r}: its rows take more than {MAX_BYTES} bytes, too "
                "much for a model that Keras and TensorFlow save. Write them with "
                "table.export_table(path), or a model to serve with tfdist.export_for_serving; a "
                "table or layer made with save_rows=False is saved without rows"
            )
        yield {name: column.copy() for name, column in columns.items()}


def restore(table: SavableTable, columns: Mapping[str, np.ndarray], source: str) -> None:
    """Replaces the servers' rows by saved ones; only the chief does so, for all workers.

    Args:
      table: a table on servers.
      columns: a result of `columns_of`. A table that was saved without rows changes nothing.
      source: the origin of the columns in error messages.

    Raises:
      CheckpointError: the rows have another width, or slots of another optimizer.
      tf.errors.OpError: a server does not answer.
    """
    columns = dict(columns)
    slot_names = bytes(columns.pop("slot_names"))
    if not slot_names or not table.rows.parameters.is_chief:
        return
    client, table_id, config = table.on_servers()
    options = {
        "slots": not table.reset_slots,
        "described": json.loads(slot_names),
        "name": table.name,
    }
    files.check(columns, config, source, **options)  # before the rows are removed
    table.clear()
    if len(columns["ids"]):
        files.assign(client, table_id, config, columns, source, **options)
