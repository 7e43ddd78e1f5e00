"""Tables in NumPy archives, written and read in chunks of rows."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from typing import IO, BinaryIO

import numpy as np

from tfdist.errors import CheckpointError
from tfdist.ps.checkpoint import files
from tfdist.ps.export.columns import CHUNK_ROWS, COLUMNS, SLOT_NAMES, check_names, parse_slot_names


def write(
    file: BinaryIO, chunks: Iterator[dict[str, np.ndarray]], slot_names: dict[str, int] | None
) -> int:
    """Writes chunks of columns by name, and the names of the slots; returns the number of rows."""
    # An array's header contains its length, which is known only at the end.
    with contextlib.ExitStack() as stack:
        parts: dict[str, BinaryIO] = {}
        rows: dict[str, tuple[int, ...]] = {}  # shapes
        count = 0
        for columns in chunks:
            for name, column in columns.items():
                if name not in parts:
                    parts[name] = stack.enter_context(tempfile.TemporaryFile())
                    rows[name] = column.shape[1:]
                parts[name].write(np.ascontiguousarray(column).tobytes())
            count += len(columns["ids"])
        with zipfile.ZipFile(file, "w", allowZip64=True) as archive:
            if slot_names is not None:
                with archive.open(f"{SLOT_NAMES}.npy", "w") as member:
                    np.lib.format.write_array(member, np.array(json.dumps(slot_names)))
            for name, part in parts.items():
                header = {
                    "descr": np.lib.format.dtype_to_descr(np.dtype(COLUMNS[name][0])),
                    "fortran_order": False,
                    "shape": (count, *rows[name]),
                }
                part.seek(0)
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array_header_1_0(member, header)
                    shutil.copyfileobj(part, member, 1 << 22)
    return count


def slot_names(path: str) -> dict[str, int] | None:
    """Returns the number of floats of each slot by name; `None` if the file does not say."""
    try:
        with files.open_whole(path) as file, zipfile.ZipFile(file) as archive:
            if f"{SLOT_NAMES}.npy" not in archive.namelist():
                return None
            with archive.open(f"{SLOT_NAMES}.npy") as member:
                text = str(np.lib.format.read_array(member, allow_pickle=False))
    except (zipfile.BadZipFile, ValueError, EOFError) as error:
        raise CheckpointError(f"{path} is damaged, or no NumPy archive: {error}") from error
    return parse_slot_names(text, path)


def read(path: str) -> Iterator[dict[str, np.ndarray]]:
    """Reads columns by name, in chunks of rows."""
    try:
        with (
            files.open_whole(path) as file,
            zipfile.ZipFile(file) as archive,
            contextlib.ExitStack() as stack,
        ):
            names = [name for name in COLUMNS if f"{name}.npy" in archive.namelist()]
            check_names(names, path)
            members = {
                name: _Member(stack.enter_context(archive.open(f"{name}.npy")), name)
                for name in names
            }
            while True:
                columns = {name: member.next(CHUNK_ROWS) for name, member in members.items()}
                if not any(map(len, columns.values())):
                    return
                yield columns
    except (zipfile.BadZipFile, ValueError, EOFError) as error:
        raise CheckpointError(f"{path} is damaged, or no NumPy archive: {error}") from error


class _Member:
    """An array of an archive, read in chunks of rows."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file = file
        self._name = name
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, is_fortran, self._dtype = read(file)
        target = np.dtype(COLUMNS[name][0])
        if is_fortran or self._dtype.kind != target.kind:
            raise ValueError(
                f"{name}: expected {target} by rows, received {self._dtype}"
                + (" by columns" if is_fortran else "")
            )
        self._target = target
        self._left, self._row = shape[0], shape[1:]

    def next(self, max_rows: int) -> np.ndarray:
        """Returns the next rows, at most `max_rows`."""
        count = min(max_rows, self._left)
        size = count * int(np.prod(self._row, dtype=np.int64)) * self._dtype.itemsize
        data = self._file.read(size)
        if len(data) < size:
            raise EOFError(f"{self._name} is truncated")
        self._left -= count
        if count == 0 or self._left == 0:
            self._file.read(1)  # makes the archive check the checksum
        return np.frombuffer(data, self._dtype).reshape(count, *self._row).astype(self._target)
