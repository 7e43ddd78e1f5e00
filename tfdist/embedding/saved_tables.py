"""The rows of a table in what Keras and TensorFlow save of a model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from tfdist.ps.export import files
from tfdist.ps.export.columns import no_rows

if TYPE_CHECKING:
    from tfdist.embedding.table import EmbeddingTable

# A saved model passes through one process's memory, several times over.
MAX_BYTES = 1 << 30


def columns_of(table: EmbeddingTable) -> dict[str, np.ndarray]:
    """Fetches a table's rows from the servers, with what its optimizer keeps.

    Args:
      table: one that knows its servers. With `save_rows=False` it has no rows here.

    Returns:
      The columns: `ids` int64[n], each once; `values` float32[n, output_dim]; `slots`
      float32[n, m]; `used` and `counts` uint32[n]; and `slot_names` uint8[k], JSON, which say what
      numbers of the slots are what.

    Raises:
      ValueError: they take more than `MAX_BYTES`.
      tf.errors.OpError: a server does not answer.
    """
    none = no_rows(table.output_dim)
    if not table.save_rows:
        return none
    pieces = list(_pieces(table, slots=True))
    whole = {name: np.concatenate([p[name] for p in pieces]) for name in pieces[0]}
    # A row that was evicted and made again meanwhile came twice.
    _, last = np.unique(whole["ids"][::-1], return_index=True)
    latest = {name: column[::-1][last] for name, column in whole.items()}
    latest["slot_names"] = np.frombuffer(json.dumps(table.config().slots()).encode(), np.uint8)
    return {**none, "slots": np.zeros([len(last), 0], np.float32), **latest}


def check_size(table: EmbeddingTable) -> None:
    """Raises ValueError if a table's rows, without slots, take more than `MAX_BYTES`."""
    for _ in _pieces(table, slots=False):
        pass


def _pieces(table: EmbeddingTable, slots: bool) -> Iterator[dict[str, np.ndarray]]:
    client, number, config = table.on_servers()
    size = 0
    for columns in files.columns_of(client, number, config.width, slots):
        size += sum(column.nbytes for column in columns.values())
        if size > MAX_BYTES:
            raise ValueError(
                f"embedding table {table.name!r}: its rows take more than {MAX_BYTES} bytes, too "
                "much for what Keras and TensorFlow save of a model. Write them with "
                "table.export_table(path), or a model to serve with tfdist.export_for_serving; a "
                "table or layer made with save_rows=False is saved without rows"
            )
        yield {name: column.copy() for name, column in columns.items()}


def restore(table: EmbeddingTable, columns: Mapping[str, np.ndarray], source: str) -> None:
    """Gives the servers the saved rows in place of theirs; only the chief does, for all workers.

    Args:
      table: one that knows its servers.
      columns: as of `columns_of`. Those that were saved without rows change nothing.
      source: what an error message calls them.

    Raises:
      CheckpointError: the rows are of another width, or the optimizer keeps something else.
      tf.errors.OpError: a server does not answer.
    """
    columns = dict(columns)
    slot_names = bytes(columns.pop("slot_names"))
    if not slot_names or not table.rows.parameters.is_chief:
        return
    client, number, config = table.on_servers()
    of_table = {
        "slots": not table.reset_slots,
        "described": json.loads(slot_names),
        "name": table.name,
    }
    files.check(columns, config, source, **of_table)  # before anything is lost
    table.clear()
    if len(columns["ids"]):
        files.assign(client, number, config, columns, source, **of_table)
