"""The state of tables in a folder of snapshots, which a training or `tfdist ps follow` writes."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from tfdist.errors import CheckpointError
from tfdist.ps.checkpoint import layout, row_chain, snapshot


@dataclasses.dataclass(frozen=True)
class PublishedPart:
    """A part of a snapshot, written by one server of the training.

    Attributes:
      folder: the server's directory.
      number: the snapshot's number.
      checksum: of the part's last file of rows.
    """

    folder: str
    number: int
    checksum: int

    def links_since(self, before: PublishedPart | None) -> tuple[list[tuple[int, int]], bool]:
        """Returns the files of rows that lead here, and whether they have all rows.

        Args:
          before: the part that a reader has already; `None`: none.

        Returns:
          Numbers and checksums of the files, for `row_chain.read_links`. Without the files that
          the reader has read, if this part continues from there.

        Raises:
          CheckpointError: a file is missing or damaged.
        """
        links = row_chain.chain(self.folder, self.number, self.checksum)
        if before is None or before.folder != self.folder:
            return links, True
        known: tuple[int, int] | None = (before.number, before.checksum)
        if known not in links:
            # No file follows one without changes.
            known = row_chain.base_without_changes(before.folder, before.number, before.checksum)
        if known in links:
            return links[links.index(known) + 1 :], False
        return links, True


@dataclasses.dataclass(frozen=True)
class Publication:
    """A complete snapshot of tables.

    Attributes:
      root: the folder.
      number: the snapshot's number; later ones have larger numbers.
      parts: the part of each server of the training.
      written: until when it has all changes, in seconds since 1970; 0: unknown.
    """

    root: str
    number: int
    parts: tuple[PublishedPart, ...]
    written: float = 0.0

    def is_after(self, before: Publication) -> bool:
        """Whether this snapshot is a later one than a reader has; `False` if it is the same.

        Raises:
          CheckpointError: it is neither: the folder was begun anew.
        """
        if self.number > before.number:
            return True
        if self.parts != before.parts:
            raise CheckpointError(
                f"{self.root}: expected snapshot {before.number} or a later one, received another "
                f"snapshot {self.number}: the folder was begun anew, and its readers have to be too"
            )
        return False

    def variables(self) -> dict[str, np.ndarray]:
        """Reads the flat arrays of the training's variables, by name; see `Placement`.

        Raises:
          CheckpointError: a file is damaged.
        """
        found: dict[str, np.ndarray] = {}
        for part in self.parts:
            read = snapshot.read(layout.path(part.folder, part.number, "npz"))
            found.update({**read.unclaimed, **read.shards})
        return found


def time_of(root: str) -> float:
    """Returns the time of a folder's manifest, in seconds since 1970."""
    seconds: float = tf.io.gfile.stat(layout.manifest(root)).mtime_nsec / 1e9
    return seconds


def latest(root: str) -> Publication:
    """Returns the latest complete snapshot of a folder.

    Raises:
      CheckpointError: there is none, it has no tables, or it is damaged.
    """
    try:
        number, servers = snapshot.recorded(root)
        if not servers:
            raise CheckpointError(
                f"{root}: expected the folder of a complete snapshot, as a training's "
                f"checkpoint_dir or the folder of 'tfdist ps follow' is, received one without "
                f"{layout.manifest(root)}"
            )
        written = time_of(root)
        parts = []
        for server in range(servers):
            folder = layout.directory(root, server, servers)
            about = snapshot.description(layout.path(folder, number, "npz"))
            if about.get("rows") is not None:
                parts.append(PublishedPart(folder, number, int(about["rows"])))
    except (tf.errors.OpError, OSError, ValueError, TypeError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{root}: its snapshot cannot be read: {error}") from error
    if len(parts) < servers:
        raise CheckpointError(
            f"{root}: expected a snapshot with embedding tables, received one of {servers} servers "
            f"of which {servers - len(parts)} have none"
        )
    return Publication(root, number, tuple(parts), written)
