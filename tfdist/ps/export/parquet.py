"""Tables in Parquet files, written and read in chunks of rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from tfdist._extras import install_command
from tfdist.errors import CheckpointError
from tfdist.ps.checkpoint import files
from tfdist.ps.export.columns import CHUNK_ROWS, COLUMNS, SLOT_NAMES, check_names, parse_slot_names


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(
            f"tables in Parquet files need pyarrow: {install_command('parquet')}"
        ) from error
    return pyarrow, pyarrow.parquet


def write(
    file: BinaryIO, chunks: Iterator[dict[str, np.ndarray]], slot_names: dict[str, int] | None
) -> int:
    """Writes chunks of columns by name, and the names of the slots; returns the number of rows."""
    arrow, parquet = _pyarrow()
    count, writer = 0, None
    try:
        for columns in chunks:
            table = arrow.table(
                {name: _to_arrow(arrow, column) for name, column in columns.items()}
            )
            if slot_names is not None:
                table = table.replace_schema_metadata({SLOT_NAMES: json.dumps(slot_names)})
            if writer is None:
                writer = parquet.ParquetWriter(_Sink(file), table.schema)
            writer.write_table(table)
            count += table.num_rows
    finally:
        if writer is not None:
            writer.close()
    return count


class _Sink:
    """Adapts a write-only file to the interface that pyarrow expects."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._written = 0
        self.closed = False

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._file.write(memoryview(data))
        self._written += size
        return size

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        """Does nothing: the owner of the file flushes it."""

    def close(self) -> None:
        self.closed = True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True


def _to_arrow(arrow: Any, column: np.ndarray) -> Any:
    if column.ndim == 1:
        return arrow.array(column)
    return arrow.FixedSizeListArray.from_arrays(
        arrow.array(np.ascontiguousarray(column).reshape(-1)), column.shape[1]
    )


def slot_names(path: str) -> dict[str, int] | None:
    """Returns the number of floats of each slot by name; `None` if the file does not say."""
    arrow, parquet = _pyarrow()
    try:
        with files.open_whole(path) as file:
            found = (parquet.read_schema(file).metadata or {}).get(SLOT_NAMES.encode())
    except (arrow.ArrowException, OSError) as error:
        raise CheckpointError(f"{path} is damaged, or no Parquet file: {error}") from error
    return None if found is None else parse_slot_names(found.decode(errors="replace"), path)


def read(path: str) -> Iterator[dict[str, np.ndarray]]:
    """Reads columns by name, in chunks of rows."""
    arrow, parquet = _pyarrow()
    try:
        with files.open_whole(path) as file:
            source = parquet.ParquetFile(file)
            there = set(source.schema_arrow.names)
            names = [name for name in COLUMNS if name in there]
            check_names(names, path)
            for batch in source.iter_batches(batch_size=CHUNK_ROWS, columns=names):
                yield {name: _from_arrow(batch, name) for name in names}
    except (arrow.ArrowException, OSError) as error:
        raise CheckpointError(f"{path} is damaged, or no Parquet file: {error}") from error


def _from_arrow(batch: Any, name: str) -> np.ndarray:
    dtype, is_list = COLUMNS[name]
    array = batch.column(name)
    if not is_list:
        return array.to_numpy(zero_copy_only=False).astype(dtype)
    flat = array.flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(len(array), -1).astype(dtype)
