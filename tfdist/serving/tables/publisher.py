"""Publishes the tables of a training: whole at first, then what has changed.

The folder of a publication has the form of a `checkpoint_dir` (`tfdist.ps.checkpoint.snapshot`):
servers read both in the same way. Its rows have no optimizer's slots. A file beside the manifest
says how far the training's own snapshots were read:

```
  training's checkpoint_dir              folder of the publication
    snapshot-00000004.rows   whole   -->   snapshot-00000001.rows   whole
    snapshot-00000005.rows   after 4 -->   snapshot-00000002.rows   after 1: both
    snapshot-00000006.rows   after 5 -/
    snapshot-00000007.rows   whole   -->   snapshot-00000003.rows   whole
    snapshot-00000008.rows   after 7, without a change: the manifest gets a later time
```
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from tfdist.errors import CheckpointError
from tfdist.ops.ps.saved_rows import SavedRows
from tfdist.ops.ps.snapshot import ReadOnlyTable, SavedTable, read_only
from tfdist.ps.checkpoint import files, layout, row_chain, rows_file, snapshot
from tfdist.serving.tables import publication
from tfdist.serving.tables.publication import Publication, PublishedPart


@dataclasses.dataclass(frozen=True)
class PublishedFiles:
    """The size of one publication.

    Attributes:
      number: of the publication.
      rows: the number of rows.
      bytes: the size of the files.
      is_whole: whether it has all rows, rather than the changed ones.
    """

    number: int
    rows: int
    bytes: int
    is_whole: bool


class Publisher:
    """Publishes snapshots of a training in a folder of its own.

    Args:
      target: the folder, which is made if necessary. A publisher continues what an earlier one has
        published there of the same training.

    Raises:
      CheckpointError: the folder cannot be written, or its manifest is damaged.
    """

    def __init__(self, target: str) -> None:
        self._target = target.rstrip("/")
        snapshot.prepare(self._target)
        self._number, _ = snapshot.recorded(self._target)
        self._as_of = publication.time_of(self._target) if self._number else 0.0
        self._read = self._recorded_parts()
        self._written: dict[int, tuple[int, int]] = {}
        for server, part in self._read.items():
            folder = layout.directory(self._target, server, len(self._read))
            about = snapshot.description(layout.path(folder, self._number, "npz"))
            self._written[server] = (self._number, int(about["rows"]))
            assert part is not None

    def publish(self, source: Publication) -> PublishedFiles | None:
        """Publishes a snapshot of the training; `None` if nothing has changed.

        Nothing of it is visible before all of it is written. Without a change the manifest is
        written again: its time says how old the published state is.

        Raises:
          CheckpointError: the snapshot is damaged, or was removed meanwhile: a later one has all
            that has changed since.
          OSError, tf.errors.OpError: the folder cannot be written, for example because the disk is
            full; a later call writes all that has changed since.
        """
        read = dict(enumerate(source.parts))
        if read == self._read:
            if source.written > self._as_of:
                self._renew(source)
            return None
        found = {i: part.links_since(self._read.get(i)) for i, part in read.items()}
        is_whole = len(read) != len(self._read) or any(whole for _, whole in found.values())
        if is_whole:
            found = {i: part.links_since(None) for i, part in read.items()}
        elif not any(self._has_changes(i, part, found[i][0]) for i, part in read.items()):
            self._read = read
            self._renew(source)
            return None
        number = self._number + 1
        written, about, rows = {}, [], 0
        for i, part in read.items():
            base = None if is_whole else self._written[i]
            folder = layout.directory(self._target, i, len(read))
            done = _write_rows(part, found[i][0], folder, number, base)
            written[i], rows = (number, done.checksum), rows + done.rows
            about.append(_write_variables(part, folder, number, done.checksum))
        snapshot.write_manifest(self._target, number, about)
        self._number, self._read, self._written = number, read, written
        self._as_of = source.written
        self._record()
        size = sum(int(str(one["bytes"])) for one in about) + sum(
            _rows_bytes(self._target, i, len(read), number) for i in read
        )
        return PublishedFiles(number, rows, size, is_whole)

    def _has_changes(self, server: int, part: PublishedPart, links: list[tuple[int, int]]) -> bool:
        """Whether a server's part of a snapshot differs from the published part."""
        for _, rows in row_chain.read_links(part.folder, links):
            if rows is not None and (len(rows.ids) or len(rows.removed)):
                return True
        folder = layout.directory(self._target, server, len(self._read))
        published = PublishedPart(folder, *self._written[server])
        if _descriptions(part, links) != _descriptions(published, []):
            return True
        return not _are_equal(_variables(part), _variables(published))

    def _renew(self, source: Publication) -> None:
        """Says that the published state is the training's until now."""
        with files.open_whole(layout.manifest(self._target)) as file:
            content = file.read()
        with files.replaced(layout.manifest(self._target)) as file:
            file.write(content)
        self._as_of = source.written
        self._record()

    def _recorded_parts(self) -> dict[int, PublishedPart]:
        """Returns how far an earlier publisher has read; nothing if that is unknown."""
        try:
            with files.open_whole(self._path()) as file:
                content = json.loads(file.read().decode())
            if content["number"] != self._number:
                return {}
            parts = [PublishedPart(str(f), int(n), int(c)) for f, n, c in content["parts"]]
            return dict(enumerate(parts))
        except (tf.errors.OpError, OSError, ValueError, KeyError, TypeError):
            return {}

    def _record(self) -> None:
        parts = [[part.folder, part.number, part.checksum] for part in self._read.values()]
        with files.replaced(self._path()) as file:
            file.write(json.dumps({"number": self._number, "parts": parts}).encode())

    def _path(self) -> str:
        return f"{self._target}/source.json"


def _write_rows(
    part: PublishedPart,
    links: list[tuple[int, int]],
    folder: str,
    number: int,
    base: tuple[int, int] | None,
) -> rows_file.Written:
    tables = _tables_of(part, links)
    index = {name: i for i, name in enumerate(tables)}

    def pieces() -> Iterator[tuple[int, SavedRows]]:
        for table, rows in row_chain.read_links(part.folder, links):
            if rows is not None:
                yield index[table.name], _values_of(rows, tables[table.name].floats)

    tf.io.gfile.makedirs(folder)
    described = [kept.table for kept in tables.values()]
    with files.replaced(layout.path(folder, number, "rows"), in_order=True) as file:
        return rows_file.write_rows(file, rows_file.About(number, base, described), pieces())


def _tables_of(part: PublishedPart, links: list[tuple[int, int]]) -> dict[str, ReadOnlyTable]:
    """Returns the tables of a snapshot as they are published, by name."""
    found: dict[str, SavedTable] = {}
    # The part's own file is the last one, even if nothing else is to be read.
    for number, _ in links or [(part.number, part.checksum)]:
        path = layout.path(part.folder, number, "rows")
        with files.open_in_order(path) as file:
            for table in rows_file.Reader(file, path).about.tables:
                found[table.name] = table
    try:
        return {name: read_only(table) for name, table in found.items()}
    except tf.errors.InvalidArgumentError as error:
        raise CheckpointError(f"{part.folder}: {error.message}") from error


def _descriptions(part: PublishedPart, links: list[tuple[int, int]]) -> dict[str, bytes]:
    """Returns how the tables of a part are published, by name."""
    return {name: kept.table.description for name, kept in _tables_of(part, links).items()}


def _variables(part: PublishedPart) -> dict[str, np.ndarray]:
    read = snapshot.read(layout.path(part.folder, part.number, "npz"))
    return {**read.unclaimed, **read.shards}


def _are_equal(some: dict[str, np.ndarray], others: dict[str, np.ndarray]) -> bool:
    # By their bytes: a NaN is equal to itself.
    return some.keys() == others.keys() and all(
        array.dtype == others[name].dtype and array.tobytes() == others[name].tobytes()
        for name, array in some.items()
    )


def _values_of(rows: SavedRows, floats: int) -> SavedRows:
    content = np.ascontiguousarray(rows.content[:, :floats])
    return dataclasses.replace(rows, content=content)


def _write_variables(
    part: PublishedPart, folder: str, number: int, checksum: int
) -> dict[str, object]:
    read = snapshot.read(layout.path(part.folder, part.number, "npz"))
    kept = snapshot.Snapshot(
        number, read.shards, np.zeros(0, np.uint64), read.unclaimed, checksum, 0, read.time
    )
    return snapshot.write(folder, kept)


def _rows_bytes(target: str, server: int, servers: int, number: int) -> int:
    folder = layout.directory(target, server, servers)
    return tf.io.gfile.stat(layout.path(folder, number, "rows")).length
