"""Parts in Parquet files. Texts are binary columns: TensorFlow does not know their encoding."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfdist._extras import install_command
from tfdist.prediction.writers import Columns, RowWriter

_ROWS = 1 << 16  # of a row group


class ParquetFormat:
    """Parquet; arrays of several values in a row are lists."""

    suffix = ".parquet"

    def __init__(self) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise ImportError(
                f"format 'parquet' needs pyarrow: {install_command('parquet')}"
            ) from error
        self._arrow, self._parquet = pyarrow, pyarrow.parquet

    def open(self, path: str) -> RowWriter:
        """Begins a part."""
        return _Parquet(self._arrow, self._parquet, path)


class _Parquet:
    def __init__(self, arrow: Any, parquet: Any, path: str) -> None:
        self._arrow, self._parquet, self._path = arrow, parquet, path
        self._writer: Any = None
        self._waiting: list[Any] = []
        self._rows = 0

    def write(self, columns: Columns) -> None:
        table = self._arrow.table(
            {name: _to_arrow(self._arrow, column) for name, column in columns.items()}
        )
        self._waiting.append(table)
        self._rows += table.num_rows
        if self._rows >= _ROWS:
            self._flush()

    def close(self) -> None:
        self._flush()
        if self._writer is not None:
            self._writer.close()

    def _flush(self) -> None:
        if not self._waiting:
            return
        # A batch of empty rows tells no type.
        table = self._arrow.concat_tables(self._waiting, promote_options="permissive")
        table = table.combine_chunks()
        if self._writer is None:
            self._writer = self._parquet.ParquetWriter(self._path, table.schema)
        self._writer.write_table(table, row_group_size=_ROWS)
        self._waiting, self._rows = [], 0


def _to_arrow(arrow: Any, column: np.ndarray) -> Any:
    if column.dtype.hasobject or column.dtype.kind in "SU":
        rows = [row.tolist() if np.ndim(row) > 1 else row for row in column.tolist()]
        return arrow.array(rows) if rows else arrow.array([], arrow.binary())
    if column.ndim == 1:
        return arrow.array(column)
    array = arrow.array(np.ascontiguousarray(column).reshape(-1))
    for size in reversed(column.shape[1:]):
        array = arrow.FixedSizeListArray.from_arrays(array, size)
    return array
