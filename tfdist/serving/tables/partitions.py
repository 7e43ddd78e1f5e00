"""The stores of a server of tables, filled from a snapshot and kept up to date."""

from __future__ import annotations

import dataclasses
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf

from tfdist.errors import CheckpointError
from tfdist.ops.ps.saved_rows import SavedRows
from tfdist.ops.ps.server import ParameterServer
from tfdist.ops.ps.server_records import ServerEvent
from tfdist.ops.ps.snapshot import ReadOnlyTable, SavedTable, read_only
from tfdist.ps.checkpoint import row_chain
from tfdist.ps.config import PsConfig
from tfdist.ps.stats.rates import Reading
from tfdist.serving.tables import ring
from tfdist.serving.tables.publication import Publication, PublishedPart

# Connections of clients to one store at a time.
MAX_READERS = 1024


@dataclasses.dataclass(frozen=True)
class StoreAddress:
    """How clients reach the store of a partition.

    Attributes:
      port: of its data connections.
      incarnation: tells the store from its predecessors.
      salt: of the key of its connections.
    """

    port: int
    incarnation: int
    salt: str


@dataclasses.dataclass(frozen=True)
class _Step:
    """Files of rows of one part of a snapshot."""

    part: PublishedPart
    links: list[tuple[int, int]]
    is_whole: bool


class Partitions:
    """The stores of the partitions that a server holds, with their tables.

    Args:
      server: the server's index.
      servers: the number of servers, and of partitions.
      replicas: the number of servers of each partition.
      interface: numeric address to listen on.
      peer_memory: as for `ParameterServer`.
      memory: the maximum number of bytes of all stores together; 0: no limit.
      port: the data port of the first store, the others' follow; 0: any free ones.

    Raises:
      tf.errors.UnavailableError: a port cannot be bound.
    """

    def __init__(
        self,
        server: int,
        servers: int,
        replicas: int,
        *,
        interface: str = "127.0.0.1",
        peer_memory: bool = True,
        memory: int = 0,
        port: int = 0,
    ) -> None:
        self._servers = servers
        self._stores: dict[int, ParameterServer] = {}
        self._salts: dict[int, str] = {}
        self._tables: dict[str, ReadOnlyTable] = {}
        self.publication: Publication | None = None
        held = ring.partitions_of(server, servers, replicas)
        try:
            for i, partition in enumerate(held):
                self._salts[partition] = secrets.token_hex(16)
                self._stores[partition] = ParameterServer(
                    partition,
                    PsConfig.make(MAX_READERS),
                    port + i if port else 0,
                    interface=interface,
                    peer_memory=peer_memory,
                    memory=memory // len(held),
                    read_only=True,
                )
        except BaseException:
            self.close()
            raise

    @property
    def addresses(self) -> Mapping[int, StoreAddress]:
        """How clients reach the stores, by partition."""
        return {
            partition: StoreAddress(store.port, store.incarnation, self._salts[partition])
            for partition, store in self._stores.items()
        }

    @property
    def widths(self) -> dict[str, int]:
        """The width of each table's rows, by its name."""
        return {name: table.width for name, table in self._tables.items()}

    def rows(self) -> int:
        """Returns the number of rows of all tables and partitions."""
        stores = self._stores.values()
        return sum(table.rows for store in stores for table in store.table_stats().values())

    def reading(self) -> Reading:
        """Returns the statistics of all stores together; see `tfdist.ps.stats.rates`."""
        server: Counter[str] = Counter()
        tables: dict[str, Counter[str]] = {}
        for store in self._stores.values():
            server.update(dataclasses.asdict(store.stats()))
            for name, table in store.table_stats().items():
                tables.setdefault(name, Counter()).update(dataclasses.asdict(table))
        return {"server": server, "tables": tables}

    def load(self, publication: Publication) -> None:
        """Reads a snapshot into the stores, before `start`.

        Raises:
          CheckpointError: a file is missing or damaged.
          tf.errors.ResourceExhaustedError: the rows do not fit in memory.
        """
        indices: dict[tuple[int, str], int] = {}
        for part in publication.parts:
            links, _ = part.links_since(None)
            for table, rows in row_chain.read_links(part.folder, links):
                if rows is None:
                    self._add(table, indices)
                    continue
                kept = self._kept(table, rows, publication.number)
                for partition, store in self._stores.items():
                    index = indices[partition, table.name]
                    store.restore_rows(index, kept, partition, self._servers)
        for store in self._stores.values():
            store.end_restore()
        self.publication = publication

    def start(self, keys: Mapping[int, bytes]) -> None:
        """Admits the clients that prove the key of a partition's store."""
        for partition, store in self._stores.items():
            store.start(keys[partition])

    def update(self, publication: Publication) -> int:
        """Brings the stores up to a later snapshot, while they answer.

        All files are read before the first row changes: damaged ones change nothing.

        Returns:
          The number of rows that were read.

        Raises:
          CheckpointError: a file is missing or damaged, or the tables are others.
          tf.errors.ResourceExhaustedError: the rows do not fit in memory; some are changed.
        """
        steps = list(self._steps_to(publication))
        for step in steps:
            for table, _ in row_chain.read_links(step.part.folder, step.links):
                self._check(table)
        count = sum(self._apply(step, publication.number) for step in steps)
        if any(step.is_whole for step in steps):
            for store in self._stores.values():
                for name in self._tables:
                    store.retain_rows(name, _mark(publication.number))
        self.publication = publication
        return count

    def events(self, seconds: float) -> Iterator[ServerEvent]:
        """Yields the events of all stores, and waits for at most `seconds` in all."""
        for store in self._stores.values():
            wait = seconds / len(self._stores)
            while (event := store.wait_for_event(wait)) is not None:
                yield event
                wait = 0.0

    def close(self) -> None:
        """Closes all connections and frees the stores. May be called again."""
        for store in self._stores.values():
            store.close()

    def _add(self, table: SavedTable, indices: dict[tuple[int, str], int]) -> None:
        try:
            known = self._tables.setdefault(table.name, read_only(table))
            if read_only(table).width != known.width:
                raise CheckpointError(f"table {table.name!r} has rows of two widths")
            for partition, store in self._stores.items():
                added = store.restore_table(read_only(table).table)
                indices[partition, table.name] = added
        except tf.errors.InvalidArgumentError as error:
            raise CheckpointError(f"table {table.name!r}: {error.message}") from error

    def _steps_to(self, publication: Publication) -> Iterator[_Step]:
        assert self.publication is not None
        before = {part.folder: part for part in self.publication.parts}
        found = [(part, *part.links_since(before.get(part.folder))) for part in publication.parts]
        # Rows that a whole snapshot lacks are removed, so the other parts are read whole, too.
        if any(is_whole for _, _, is_whole in found):
            found = [(part, *part.links_since(None)) for part, _, _ in found]
        return (_Step(*one) for one in found)

    def _check(self, table: SavedTable) -> None:
        known = self._tables.get(table.name)
        if known is None or known.floats != read_only(table).floats:
            received = "a new one" if known is None else "another width or optimizer"
            raise CheckpointError(
                f"table {table.name!r}: expected the tables with which this server has started, "
                f"received {received}: start the servers again"
            )

    def _apply(self, step: _Step, number: int) -> int:
        count = 0
        for table, rows in row_chain.read_links(step.part.folder, step.links):
            if rows is None:
                for store in self._stores.values():
                    store.set_step(table)
                continue
            kept = self._kept(table, rows, number)
            count += len(kept.ids)
            for partition, store in self._stores.items():
                store.update_rows(table.name, kept, partition, self._servers)
        return count

    def _kept(self, table: SavedTable, rows: SavedRows, number: int) -> SavedRows:
        """Returns rows as the stores have them; their time of use is the snapshot's number."""
        content = rows.content[:, : self._tables[table.name].floats]
        return SavedRows(
            rows.ids,
            np.full(len(rows.ids), _mark(number), np.uint32),
            np.zeros(len(rows.ids), np.uint32),
            np.ascontiguousarray(content),
            rows.removed,
        )


def _mark(number: int) -> int:
    return number % 2**32
