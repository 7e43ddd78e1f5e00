"""Tables of embeddings in files that others read: NumPy archives and Parquet.

An .npz has the arrays `ids` (int64), `values` (float32, a row for each id) and, with slots, `slots`
(float32), `used` and `counts` (uint32); a Parquet file has the columns `id`, `value`, `slots`,
`used` and `count`. One that somebody else has made needs ids and values only.

All rows of all servers go through the process that calls this, some at a time.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np

from tfdist import ops
from tfdist.errors import CheckpointError
from tfdist.ps import files

_AT_ONCE = 1 << 16
_NO_IDS = np.zeros([0], np.int64)
_COLUMNS = {  # of an archive: name in a Parquet file, dtype, whether it has several for an id
    "ids": ("id", np.int64, False),
    "values": ("value", np.float32, True),
    "slots": ("slots", np.float32, True),
    "used": ("used", np.uint32, False),
    "counts": ("count", np.uint32, False),
}
_WITHOUT_SLOTS = ("ids", "values")


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
    writer = _format_of(path)[0]
    with _replaced(path) as scratch, files.create(scratch, in_order=True) as file:
        return writer(file, _columns_of(client, table, config.width, slots))


def import_table(
    client: ops.ParameterClient, table: int, config: ops.TableConfig, path: str
) -> int:
    """Puts the rows of a file into a table; rows of other ids stay.

    A file with slots restores them; else they begin as those of new rows.

    Args:
      client: a worker's connections.
      table: its number.
      config: its configuration.
      path: of a file that `export_table` or somebody else has written.

    Returns:
      How many rows.

    Raises:
      ValueError: the path does not end in ".npz" or ".parquet".
      ImportError: for Parquet, pyarrow is not installed.
      CheckpointError: the file is something else, or of rows of another width.
      tf.errors.OpError: a server refused.
    """
    reader = _format_of(path)[1]
    count = 0
    for columns in reader(path):
        values = _checked(columns, config.width, path)
        content = values
        if "slots" in columns:
            content = np.concatenate([values, columns["slots"]], axis=1)
        none = np.zeros(len(values), np.uint32)
        rows = ops.SavedRows(
            np.ascontiguousarray(columns["ids"]),
            np.ascontiguousarray(columns.get("used", none)),
            np.ascontiguousarray(columns.get("counts", none)),
            np.ascontiguousarray(content),
            _NO_IDS,
        )
        ops.assign_rows(client, table, rows, "used" in columns)
        count += len(values)
    return count


def _format_of(path: str) -> tuple[Any, Any]:
    if path.endswith(".npz"):
        return _write_archive, _read_archive
    if path.endswith(".parquet"):
        return _write_parquet, _read_parquet
    raise ValueError(
        f'a table\'s file: expected a path that ends in ".npz" or ".parquet", received {path!r}'
    )


def _columns_of(
    client: ops.ParameterClient, table: int, width: int, slots: bool
) -> Iterator[dict[str, np.ndarray]]:
    count = 0
    for server in range(client.servers):
        for rows in ops.dump_rows(client, table, server, slots, _AT_ONCE):
            columns = {"ids": rows.ids, "values": rows.content[:, :width]}
            if slots:
                columns |= {"used": rows.used, "counts": rows.counts}
            if rows.content.shape[1] > width:
                columns["slots"] = rows.content[:, width:]
            count += len(rows.ids)
            yield columns
    if count == 0:  # a file says how wide the rows are, even if there are none
        yield {"ids": _NO_IDS, "values": np.zeros([0, width], np.float32)}


def _checked(columns: dict[str, np.ndarray], width: int, path: str) -> np.ndarray:
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
    return values


@contextlib.contextmanager
def _replaced(path: str) -> Iterator[str]:
    """A name beside `path` that becomes `path`, or goes."""
    import tensorflow as tf

    scratch = f"{path}.tmp"
    try:
        yield scratch
    except BaseException:
        if tf.io.gfile.exists(scratch):
            tf.io.gfile.remove(scratch)
        raise
    tf.io.gfile.rename(scratch, path, overwrite=True)


def _write_archive(file: BinaryIO, pieces: Iterator[dict[str, np.ndarray]]) -> int:
    # An array's header says how long it is, which shows in the end.
    with contextlib.ExitStack() as stack:
        parts: dict[str, BinaryIO] = {}
        rows: dict[str, tuple[int, ...]] = {}  # shapes
        count = 0
        for columns in pieces:
            for name, column in columns.items():
                if name not in parts:
                    parts[name] = stack.enter_context(tempfile.TemporaryFile())
                    rows[name] = column.shape[1:]
                parts[name].write(np.ascontiguousarray(column).tobytes())
            count += len(columns["ids"])
        with zipfile.ZipFile(file, "w", allowZip64=True) as archive:
            for name, part in parts.items():
                header = {
                    "descr": np.lib.format.dtype_to_descr(np.dtype(_COLUMNS[name][1])),
                    "fortran_order": False,
                    "shape": (count, *rows[name]),
                }
                part.seek(0)
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array_header_1_0(member, header)
                    shutil.copyfileobj(part, member, 1 << 22)
    return count


def _read_archive(path: str) -> Iterator[dict[str, np.ndarray]]:
    try:
        with (
            files.open_whole(path) as file,
            zipfile.ZipFile(file) as archive,
            contextlib.ExitStack() as stack,
        ):
            names = [name for name in _COLUMNS if f"{name}.npy" in archive.namelist()]
            _check_names(names, path)
            members = {
                name: _Member(stack.enter_context(archive.open(f"{name}.npy")), name)
                for name in names
            }
            while True:
                columns = {name: member.next(_AT_ONCE) for name, member in members.items()}
                if not any(map(len, columns.values())):
                    return
                yield columns
    except (zipfile.BadZipFile, ValueError, EOFError) as error:
        raise CheckpointError(f"{path} is damaged, or no NumPy archive: {error}") from error


class _Member:
    """An array of an archive, read by rows."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self._name = name
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, is_fortran, self._dtype = read(file)
        wanted = np.dtype(_COLUMNS[name][1])
        if is_fortran or self._dtype.kind != wanted.kind:
            raise ValueError(
                f"{name}: expected {wanted} by rows, received {self._dtype}"
                + (" by columns" if is_fortran else "")
            )
        self._wanted = wanted
        self._left, self._row = shape[0], shape[1:]

    def next(self, most: int) -> np.ndarray:
        """The next rows, at most so many."""
        count = min(most, self._left)
        size = count * int(np.prod(self._row, dtype=np.int64)) * self._dtype.itemsize
        data = self._file.read(size)
        if len(data) < size:
            raise EOFError(f"{self._name} is truncated")
        self._left -= count
        if count == 0 or self._left == 0:
            self._file.read(1)  # so that the archive checks what was read
        return np.frombuffer(data, self._dtype).reshape(count, *self._row).astype(self._wanted)


def _check_names(names: Sequence[str], path: str) -> None:
    extra = [name for name in names if name not in _WITHOUT_SLOTS]
    wanted = [*_WITHOUT_SLOTS, *(["used", "counts"] if extra else [])]
    missing = [name for name in wanted if name not in names]
    if missing:
        raise CheckpointError(
            f"{path}: expected {', '.join(missing)}, received {', '.join(names) or 'none of it'}"
        )


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(
            "tables in Parquet files need pyarrow: pip install 'tfdist[parquet]'"
        ) from error
    return pyarrow, pyarrow.parquet


def _write_parquet(file: BinaryIO, pieces: Iterator[dict[str, np.ndarray]]) -> int:
    arrow, parquet = _pyarrow()
    count, writer = 0, None
    try:
        for columns in pieces:
            table = arrow.table({_COLUMNS[n][0]: _to_arrow(arrow, c) for n, c in columns.items()})
            if writer is None:
                writer = parquet.ParquetWriter(_Sink(file), table.schema)
            writer.write_table(table)
            count += table.num_rows
    finally:
        if writer is not None:
            writer.close()
    return count


class _Sink:
    """What pyarrow wants of a file that is only written to."""

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
        """Whoever made the file does."""

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


def _read_parquet(path: str) -> Iterator[dict[str, np.ndarray]]:
    arrow, parquet = _pyarrow()
    try:
        with files.open_whole(path) as file:
            source = parquet.ParquetFile(file)
            there = set(source.schema_arrow.names)
            names = [name for name, (column, *_) in _COLUMNS.items() if column in there]
            _check_names(names, path)
            for batch in source.iter_batches(
                batch_size=_AT_ONCE, columns=[_COLUMNS[name][0] for name in names]
            ):
                yield {name: _from_arrow(batch, name) for name in names}
    except (arrow.ArrowException, OSError) as error:
        raise CheckpointError(f"{path} is damaged, or no Parquet file: {error}") from error


def _from_arrow(batch: Any, name: str) -> np.ndarray:
    column, dtype, is_list = _COLUMNS[name]
    array = batch.column(column)
    if not is_list:
        return array.to_numpy(zero_copy_only=False).astype(dtype)
    flat = array.flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(len(array), -1).astype(dtype)
