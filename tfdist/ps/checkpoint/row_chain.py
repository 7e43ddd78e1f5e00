"""The files of rows of a snapshot: a file with all rows, then files with the changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import tensorflow as tf

from tfdist.errors import CheckpointError
from tfdist.ops.ps.saved_rows import SavedRows
from tfdist.ops.ps.snapshot import SavedTable
from tfdist.ps.checkpoint import files, layout, rows_file


def write(
    folder: str,
    number: int,
    base: tuple[int, int] | None,
    tables: Sequence[SavedTable],
) -> rows_file.Written:
    """Writes the rows of snapshot `number`, before the snapshot itself.

    Args:
      folder: the server's directory.
      number: the checkpoint's number.
      base: number and checksum of the file that these changes apply to; `None` if these are all
        rows.
      tables: the tables of the server's snapshot.

    Raises:
      tf.errors.OpError, OSError: the file system refused.
    """
    tf.io.gfile.makedirs(folder)
    path = layout.path(folder, number, "rows")
    with files.replaced(path, in_order=True) as file:
        return rows_file.write(file, rows_file.About(number, base, tables))


def read(folder: str, number: int, checksum: int) -> Iterator[tuple[SavedTable, SavedRows | None]]:
    """Reads the rows of a snapshot, file by file in the order of writing.

    Args:
      folder: the server's directory.
      number: the snapshot's number.
      checksum: the checksum of its file of rows.

    Yields:
      Of each file first its tables, without rows, then chunks of rows, each valid until the next.

    Raises:
      CheckpointError: a file is missing, truncated, altered, or no file of rows.
    """
    yield from read_links(folder, chain(folder, number, checksum))


def read_links(
    folder: str, links: Sequence[tuple[int, int]]
) -> Iterator[tuple[SavedTable, SavedRows | None]]:
    """Reads some files of rows as `read` does.

    Args:
      folder: the server's directory.
      links: numbers and checksums of the files, from `chain`.

    Yields:
      As `read`.

    Raises:
      CheckpointError: as for `read`.
    """
    for link, link_checksum in links:
        path = layout.path(folder, link, "rows")
        with files.open_in_order(path) as file:
            reader = rows_file.Reader(file, path)
            for table in reader.about.tables:
                yield table, None
            for index, rows in reader.rows():
                yield reader.about.tables[index], rows
            if reader.checksum != link_checksum:
                raise CheckpointError(f"{path} is not the file that its followers have known")


def chain(folder: str, number: int, checksum: int) -> list[tuple[int, int]]:
    """Returns numbers and checksums of a snapshot's files of rows, the full one first.

    Raises:
      CheckpointError: one of the files is missing or damaged.
    """
    found = [(number, checksum)]
    while True:
        path = layout.path(folder, found[0][0], "rows")
        if not tf.io.gfile.exists(path):
            raise CheckpointError(f"snapshot {number} in {folder} needs {path}, which is missing")
        with files.open_in_order(path) as file:
            base = rows_file.Reader(file, path).about.base
        if base is None:
            return found
        if base[0] >= found[0][0]:
            raise CheckpointError(f"{path} is damaged: it follows number {base[0]}")
        found.insert(0, base)


def base_without_changes(folder: str, number: int, checksum: int) -> tuple[int, int] | None:
    """Returns the file that a file of rows without changes follows.

    Returns:
      Its number and checksum; `None` if there are changes, or if the file is gone or another one.
    """
    path = layout.path(folder, number, "rows")
    try:
        with files.open_in_order(path) as file:
            reader = rows_file.Reader(file, path)
            if any(len(rows.ids) or len(rows.removed) for _, rows in reader.rows()):
                return None
            return reader.about.base if reader.checksum == checksum else None
    except (CheckpointError, tf.errors.OpError, OSError):
        return None
