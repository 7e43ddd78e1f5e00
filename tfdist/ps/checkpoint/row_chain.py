"""The files of rows that make up a snapshot: one that has all of them, and what changed since."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import tensorflow as tf

from tfdist import ops
from tfdist.errors import CheckpointError
from tfdist.ps.checkpoint import files, layout, rows_file


def write(
    folder: str,
    number: int,
    follows: tuple[int, int] | None,
    tables: Sequence[ops.SavedTable],
) -> rows_file.Written:
    """Writes the rows of snapshot `number`, before the snapshot itself.

    Args:
      folder: of the server.
      number: of the checkpoint.
      follows: number and seal of the file that has all the other rows; `None` if these are all.
      tables: of the server's image.

    Raises:
      tf.errors.OpError, OSError: the file system refused.
    """
    tf.io.gfile.makedirs(folder)
    path = layout.path(folder, number, "rows")
    with files.create(f"{path}.tmp", in_order=True) as file:
        written = rows_file.write(file, rows_file.About(number, follows, tables))
    tf.io.gfile.rename(f"{path}.tmp", path, overwrite=True)
    return written


def read(
    folder: str, number: int, seal: int
) -> Iterator[tuple[ops.SavedTable, ops.SavedRows | None]]:
    """Reads the rows of a snapshot: those of each file, in the order in which they were written.

    Args:
      folder: of the server.
      number: of the snapshot.
      seal: of its file of rows.

    Yields:
      First each table without rows, and then some rows of it at a time, valid until the next.

    Raises:
      CheckpointError: a file is missing, truncated, altered, or something else.
    """
    for link, link_seal in chain(folder, number, seal):
        path = layout.path(folder, link, "rows")
        with files.open_in_order(path) as file:
            reader = rows_file.Reader(file, path)
            for table in reader.about.tables:
                yield table, None
            for table, rows in reader.rows():
                yield reader.about.tables[table], rows
            if reader.seal != link_seal:
                raise CheckpointError(f"{path} is not the file that its followers have known")


def chain(folder: str, number: int, seal: int) -> list[tuple[int, int]]:
    """Returns numbers and seals of the files of rows that make up a snapshot, the full one first.

    Raises:
      CheckpointError: one of them is missing or damaged.
    """
    found = [(number, seal)]
    while True:
        path = layout.path(folder, found[0][0], "rows")
        if not tf.io.gfile.exists(path):
            raise CheckpointError(f"snapshot {number} in {folder} needs {path}, which is missing")
        with files.open_in_order(path) as file:
            follows = rows_file.Reader(file, path).about.follows
        if follows is None:
            return found
        if follows[0] >= found[0][0]:
            raise CheckpointError(f"{path} is damaged: it follows number {follows[0]}")
        found.insert(0, follows)
