"""Tables in NumPy archives, written and read some rows at a time."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from tfdist.errors import CheckpointError
from tfdist.ps.checkpoint import files
from tfdist.ps.export.columns import AT_ONCE, COLUMNS, SLOT_NAMES, check_names, parse_slot_names


def write(
    file: BinaryIO, pieces: Iterator[dict[str, np.ndarray]], slot_names: dict[str, int] | None
) -> int:
    """Writes columns by name, and what the slots are; returns how many rows."""
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
    """Returns what the file says of its slots; `None` if it does not."""
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
    """Reads columns by name, some rows at a time."""
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
                columns = {name: member.next(AT_ONCE) for name, member in members.items()}
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
        wanted = np.dtype(COLUMNS[name][0])
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
