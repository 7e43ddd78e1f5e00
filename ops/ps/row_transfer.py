"""Rows of tables that a worker takes out of servers, and puts into them, as they are."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

from tfdist.ops import library
from tfdist.ops.ps.parameter_client import ParameterClient
from tfdist.ops.ps.saved_rows import SavedRows, rows_from_c
from tfdist.ops.ps.server_calls import Handle, Rows

_SCAN = library.CFunctions(
    "tfdist_ps_scan_",
    checked={
        "next": [
            Handle,
            Handle,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_uint64,
            ctypes.c_bool,
            ctypes.POINTER(Rows),
            ctypes.POINTER(ctypes.c_uint64),
            ctypes.POINTER(ctypes.c_bool),
        ],
    },
    plain={"end": [Handle]},
    returning={"begin": ([], Handle)},
)
_IMPORT = library.CFunctions(
    "tfdist_ps_import_",
    checked={"rows": [Handle, ctypes.c_int, ctypes.POINTER(Rows), ctypes.c_uint64, ctypes.c_bool]},
)


def scan_rows(
    client: ParameterClient, table: int, server: int, slots: bool, most: int = 1 << 16
) -> Iterator[SavedRows]:
    """Fetches all rows that a server has of a table.

    They are not of one moment: of rows that come or go meanwhile, some are missing, or come twice.

    Args:
      client: a worker's.
      table: its number.
      server: which server.
      slots: fetch the optimizer's numbers too; else `content` has only the rows' values.
      most: about how many rows at a time.

    Yields:
      Rows, valid until the next.

    Raises:
      tf.errors.OpError: the server does not answer, or was started again meanwhile.
    """
    scan = _SCAN.begin()
    raw, floats, more = Rows(), ctypes.c_uint64(), ctypes.c_bool(True)
    try:
        while True:
            _SCAN.next(
                scan,
                client.handle,
                table,
                server,
                most,
                slots,
                ctypes.byref(raw),
                ctypes.byref(floats),
                ctypes.byref(more),
            )
            if raw.count:
                yield rows_from_c(raw, floats.value)
            if not more.value:
                return
    finally:
        _SCAN.end(scan)


def import_rows(client: ParameterClient, table: int, rows: SavedRows, slots: bool) -> None:
    """Puts rows in place on the servers that are to hold them, and waits until they have.

    Args:
      client: a worker's.
      table: its number.
      rows: with `content` of values and slots, or of values only.
      slots: which of both. Without, slots begin as those of new rows.

    Raises:
      tf.errors.InvalidArgumentError: the table's rows are of another length.
      tf.errors.OpError: a server does not answer.
    """
    _IMPORT.rows(client.handle, table, ctypes.byref(rows.as_c()), rows.content.shape[1], slots)
