"""Embedding tables in NumPy archives and Parquet files.

A file has `ids` (int64), `values` (float32, a row for each id) and, with slots, `slots` (float32),
`used` and `counts` (uint32): arrays of an .npz, columns of a Parquet file. With slots it also
describes them (`slot_names`). A file of another program needs ids and values only.

All rows of all servers pass through the calling process, in chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType

import numpy as np

from tfdist.errors import CheckpointError
from tfdist.ops.ps.client import ParameterClient
from tfdist.ops.ps.saved_rows import SavedRows, import_rows, scan_rows
from tfdist.ops.ps.table_config import TableConfig
from tfdist.ps.checkpoint import files
from tfdist.ps.export import archive, parquet
from tfdist.ps.export.columns import CHUNK_ROWS

_NO_IDS = np.zeros([0], np.int64)


def export_table(
    client: ParameterClient, table: int, config: TableConfig, path: str, slots: bool = False
) -> int:
    """Writes all rows of a table to a file, which gets its name when it is complete.

    The file is no snapshot of one moment: while other workers train, new or evicted rows may be
    missing or occur twice.

    Args:
      client: a worker's connections.
      table: the table's id.
      config: the table's configuration.
      path: ends in ".npz" or ".parquet".
      slots: also write the optimizer's slots, and time and number of uses of each row.

    Returns:
      The number of rows.

    Raises:
      ValueError: the path has another ending.
      ImportError: for Parquet, pyarrow is not installed.
      tf.errors.OpError, OSError: a server or the file system refused.
    """
    form = _format_of(path)
    with files.replaced(path, in_order=True, private=False) as file:
        names = config.slots() if slots else None
        return form.write(file, columns_of(client, table, config.width, slots), names)


def import_table(
    client: ParameterClient,
    table: int,
    config: TableConfig,
    path: str,
    *,
    slots: bool = True,
    name: str = "",
) -> int:
    """Inserts or replaces rows of a table from a file; rows of other ids stay.

    If the file has no slots, the rows get new rows' slots.

    Args:
      client: a worker's connections.
      table: the table's id.
      config: the table's configuration.
      path: a file of `export_table` or of another program.
      slots: restore the file's slots; without, only values are restored, and slots begin as in new
        rows.
      name: the table's name in messages.

    Returns:
      The number of rows.

    Raises:
      ValueError: the path does not end in ".npz" or ".parquet".
      ImportError: for Parquet, pyarrow is not installed.
      CheckpointError: the file is invalid, has rows of another width, or slots of another
        optimizer; no row was changed then.
      tf.errors.OpError: a server refused.
    """
    form = _format_of(path)
    described = form.slot_names(path) if slots else None
    return sum(
        assign(client, table, config, columns, path, slots=slots, described=described, name=name)
        for columns in form.read(path)
    )


def assign(
    client: ParameterClient,
    table: int,
    config: TableConfig,
    columns: Mapping[str, np.ndarray],
    source: str,
    *,
    slots: bool = True,
    described: dict[str, int] | None = None,
    name: str = "",
) -> int:
    """Inserts or replaces rows of a table; rows of other ids stay.

    Args:
      client: a worker's connections.
      table: the table's id.
      config: the table's configuration.
      columns: `ids` and `values`, and, to restore slots, `slots`, `used` and `counts`.
      source: the origin of the columns in error messages.
      slots: whether to restore slots, if there are any.
      described: the number of floats of each slot by name; `None`: unknown.
      name: the table's name in messages.

    Returns:
      The number of rows.

    Raises:
      CheckpointError: the columns have another width or different lengths, or slots of another
        optimizer.
      tf.errors.OpError: a server refused.
    """
    with_slots = slots and "used" in columns
    check(columns, config, source, slots=slots, described=described, name=name)
    content = values = columns["values"]
    if with_slots and "slots" in columns:
        content = np.concatenate([values, columns["slots"]], axis=1)
    none = np.zeros(len(values), np.uint32)
    rows = SavedRows(
        np.ascontiguousarray(columns["ids"]),
        np.ascontiguousarray(columns.get("used", none)),
        np.ascontiguousarray(columns.get("counts", none)),
        np.ascontiguousarray(content),
        _NO_IDS,
    )
    import_rows(client, table, rows, with_slots)
    return len(values)


def fetch(
    client: ParameterClient, table: int, config: TableConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Returns all ids that have a row, int64[n], and the rows, float32[n, width].

    Args:
      client: a worker's connections.
      table: the table's id.
      config: the table's configuration.
    """
    ids, rows = [], []
    for columns in columns_of(client, table, config.width, slots=False):
        ids.append(columns["ids"].copy())
        rows.append(columns["values"].copy())
    # A row that was evicted and created again meanwhile occurs twice.
    unique, last = np.unique(np.concatenate(ids)[::-1], return_index=True)
    return unique, np.concatenate(rows)[::-1][last]


def _format_of(path: str) -> ModuleType:
    if path.endswith(".npz"):
        return archive
    if path.endswith(".parquet"):
        return parquet
    raise ValueError(
        f'a table\'s file: expected a path that ends in ".npz" or ".parquet", received {path!r}'
    )


def columns_of(
    client: ParameterClient, table: int, width: int, slots: bool
) -> Iterator[dict[str, np.ndarray]]:
    """Fetches a table in chunks of rows, at least one, each valid until the next."""
    count = 0
    for server in range(client.servers):
        for rows in scan_rows(client, table, server, slots, CHUNK_ROWS):
            columns = {"ids": rows.ids, "values": rows.content[:, :width]}
            if slots:
                columns |= {"used": rows.used, "counts": rows.counts}
            if rows.content.shape[1] > width:
                columns["slots"] = rows.content[:, width:]
            count += len(rows.ids)
            yield columns
    if count == 0:  # a file has the rows' width, even without rows
        yield {"ids": _NO_IDS, "values": np.zeros([0, width], np.float32)}


def check(
    columns: Mapping[str, np.ndarray],
    config: TableConfig,
    path: str,
    *,
    slots: bool = True,
    described: dict[str, int] | None = None,
    name: str = "",
) -> None:
    """Raises CheckpointError if `assign` would with these arguments."""
    _check_shapes(columns, config.width, path)
    if slots and "used" in columns:
        _check_slots(columns, described, config, path, name)


def _check_shapes(columns: Mapping[str, np.ndarray], width: int, path: str) -> None:
    values = columns["values"]
    if values.ndim != 2 or values.shape[1] != width:
        raise CheckpointError(
            f"{path}: expected rows of {width} numbers, received values of shape "
            f"{list(values.shape)}"
        )
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) != 1:
        raise CheckpointError(f"{path}: expected columns of one length, received {lengths}")
    if "slots" in columns and columns["slots"].ndim != 2:
        raise CheckpointError(
            f"{path}: expected slots of two dimensions, received {columns['slots'].ndim}"
        )


def _check_slots(
    columns: Mapping[str, np.ndarray],
    described: dict[str, int] | None,
    config: TableConfig,
    path: str,
    name: str,
) -> None:
    """Raises CheckpointError unless the file's slots match the table's optimizer."""
    expected = config.slots()
    count = columns["slots"].shape[1] if "slots" in columns else 0
    if described is None:  # a file of another program
        fits, received = count == sum(expected.values()), f"{count} numbers without names"
    else:
        # In the same order.
        fits = list(described.items()) == list(expected.items()) and count == sum(expected.values())
        received = _slots_text(described)
    if not fits:
        raise CheckpointError(
            f"{path}: embedding table {name!r}: expected the slots {_slots_text(expected)}, as its "
            f"optimizer keeps them, received {received}; import_table(path, slots=False) takes the "
            "values alone, and slots begin as in new rows; of a saved model a table with "
            "reset_slots=True does so"
        )


def _slots_text(slots: dict[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in slots.items()) or "(none)"
