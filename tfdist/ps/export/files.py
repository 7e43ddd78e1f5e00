"""Tables of embeddings in files that others read: NumPy archives and Parquet.

They have `ids` (int64), `values` (float32, a row for each id) and, with slots, `slots` (float32),
`used` and `counts` (uint32): arrays of an .npz, columns of a Parquet file. With slots they also say
what these are (`slot_names`). One that somebody else has made needs ids and values only.

All rows of all servers go through the process that calls this, some at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import ModuleType

import numpy as np
import tensorflow as tf

from tfdist import ops
from tfdist.errors import CheckpointError
from tfdist.ps.checkpoint import files
from tfdist.ps.export import archive, parquet
from tfdist.ps.export.columns import AT_ONCE

_NO_IDS = np.zeros([0], np.int64)


def export_table(
    client: ops.ParameterClient, table: int, config: ops.TableConfig, path: str, slots: bool = False
) -> int:
    """Writes all rows of a table to a file, which appears when it is complete.

    They are not of one moment if others train meanwhile: of rows that come or go, some may be
    missing or come twice.

    Args:
      client: a worker's connections.
      table: its number.
      config: its configuration.
      path: ends in ".npz" or ".parquet".
      slots: write also what the optimizer keeps, and when and how often rows were used.

    Returns:
      How many rows.

    Raises:
      ValueError: the path ends otherwise.
      ImportError: for Parquet, pyarrow is not installed.
      tf.errors.OpError, OSError: a server or the file system refused.
    """
    form = _format_of(path)
    with _replaced(path) as scratch, files.create(scratch, in_order=True, private=False) as file:
        names = config.slots() if slots else None
        return form.write(file, columns_of(client, table, config.width, slots), names)


def import_table(
    client: ops.ParameterClient,
    table: int,
    config: ops.TableConfig,
    path: str,
    *,
    slots: bool = True,
    name: str = "",
) -> int:
    """Puts the rows of a file into a table; rows of other ids stay.

    A file with slots restores them; else they begin as those of new rows.

    Args:
      client: a worker's connections.
      table: its number.
      config: its configuration.
      path: of a file that `export_table` or somebody else has written.
      slots: take what the file has of slots; else its values alone, and slots begin as those of new
        rows.
      name: of the table, for messages.

    Returns:
      How many rows.

    Raises:
      ValueError: the path does not end in ".npz" or ".parquet".
      ImportError: for Parquet, pyarrow is not installed.
      CheckpointError: the file is something else, of rows of another width, or with the slots of
        another optimizer; nothing was changed then.
      tf.errors.OpError: a server refused.
    """
    form = _format_of(path)
    described = form.slot_names(path) if slots else None
    return sum(
        assign(client, table, config, columns, path, slots=slots, described=described, name=name)
        for columns in form.read(path)
    )


def assign(
    client: ops.ParameterClient,
    table: int,
    config: ops.TableConfig,
    columns: Mapping[str, np.ndarray],
    source: str,
    *,
    slots: bool = True,
    described: dict[str, int] | None = None,
    name: str = "",
) -> int:
    """Puts rows into a table; rows of other ids stay.

    Args:
      client: a worker's connections.
      table: its number.
      config: its configuration.
      columns: `ids` and `values`, and, to restore slots, `slots`, `used` and `counts`.
      source: where they come from, for error messages.
      slots: whether to restore slots, if there are any.
      described: which slots they are; `None`: it is not known.
      name: of the table, for messages.

    Returns:
      How many rows.

    Raises:
      CheckpointError: they are of another width, of different lengths, or with the slots of another
        optimizer.
      tf.errors.OpError: a server refused.
    """
    with_slots = slots and "used" in columns
    check(columns, config, source, slots=slots, described=described, name=name)
    content = values = columns["values"]
    if with_slots and "slots" in columns:
        content = np.concatenate([values, columns["slots"]], axis=1)
    none = np.zeros(len(values), np.uint32)
    rows = ops.SavedRows(
        np.ascontiguousarray(columns["ids"]),
        np.ascontiguousarray(columns.get("used", none)),
        np.ascontiguousarray(columns.get("counts", none)),
        np.ascontiguousarray(content),
        _NO_IDS,
    )
    ops.import_rows(client, table, rows, with_slots)
    return len(values)


def fetch(
    client: ops.ParameterClient, table: int, config: ops.TableConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Returns all ids that have a row, int64[n], and the rows, float32[n, width].

    Args:
      client: a worker's connections.
      table: its number.
      config: its configuration.
    """
    ids, rows = [], []
    for columns in columns_of(client, table, config.width, slots=False):
        ids.append(columns["ids"].copy())
        rows.append(columns["values"].copy())
    # A row that was evicted and made again meanwhile came twice.
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
    client: ops.ParameterClient, table: int, width: int, slots: bool
) -> Iterator[dict[str, np.ndarray]]:
    """Fetches a table, some rows at a time, which are valid until the next; at least once."""
    count = 0
    for server in range(client.servers):
        for rows in ops.scan_rows(client, table, server, slots, AT_ONCE):
            columns = {"ids": rows.ids, "values": rows.content[:, :width]}
            if slots:
                columns |= {"used": rows.used, "counts": rows.counts}
            if rows.content.shape[1] > width:
                columns["slots"] = rows.content[:, width:]
            count += len(rows.ids)
            yield columns
    if count == 0:  # a file says how wide the rows are, even if there are none
        yield {"ids": _NO_IDS, "values": np.zeros([0, width], np.float32)}


def check(
    columns: Mapping[str, np.ndarray],
    config: ops.TableConfig,
    path: str,
    *,
    slots: bool = True,
    described: dict[str, int] | None = None,
    name: str = "",
) -> None:
    """Raises CheckpointError unless `assign`, whose arguments these are, can put rows in place."""
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
    config: ops.TableConfig,
    path: str,
    name: str,
) -> None:
    """Raises CheckpointError unless the file's slots are those that the table's optimizer keeps."""
    expected = config.slots()
    count = columns["slots"].shape[1] if "slots" in columns else 0
    if described is None:  # a file of somebody else's
        fits, received = count == sum(expected.values()), f"{count} numbers without names"
    else:
        # Their order too.
        fits = list(described.items()) == list(expected.items()) and count == sum(expected.values())
        received = _slots_text(described)
    if not fits:
        raise CheckpointError(
            f"{path}: embedding table {name!r}: expected the slots {_slots_text(expected)}, as its "
            f"optimizer keeps them, received {received}; import_table(path, slots=False) takes the "
            "values alone, and slots begin as those of new rows; of a saved model a table with "
            "reset_slots=True does so"
        )


def _slots_text(slots: dict[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in slots.items()) or "(none)"


@contextlib.contextmanager
def _replaced(path: str) -> Iterator[str]:
    """A name beside `path` that becomes `path`, or goes."""
    scratch = f"{path}.tmp"
    try:
        yield scratch
    except BaseException:
        if tf.io.gfile.exists(scratch):
            tf.io.gfile.remove(scratch)
        raise
    tf.io.gfile.rename(scratch, path, overwrite=True)
