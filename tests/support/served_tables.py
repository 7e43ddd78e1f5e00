"""Snapshots of tables, servers of them, and models that look rows up, in tests."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import tensorflow as tf

from support.table_job import ADAGRAD, Worker, start_server
from tfdist.config.settings import Settings
from tfdist.embedding.served_table import ServedTable
from tfdist.launch.ports import free_ports
from tfdist.ops.ps.tables import EditKind
from tfdist.ps.checkpoint import layout, snapshot
from tfdist.ps.checkpoint.checkpoint import Checkpoints
from tfdist.ps.export import served_models
from tfdist.ps.export.served_models import ServedModelFile
from tfdist.serving.tables.server import TableServer
from tfdist.serving.tables.server_group import ServerGroup


class Training:
    """Two parameter servers with a table "users", whose rows a test sets, and their snapshots.

    Args:
      root: the folder of the snapshots.
      width: of the rows.
      servers: the number of servers.

    Attributes:
      checkpoints: of each server.
    """

    def __init__(self, root: Path, width: int = 4, servers: int = 2) -> None:
        self.root, self.width = str(root), width
        stores = [start_server(i) for i in range(servers)]
        self._worker = Worker(stores)
        self.checkpoints = [
            Checkpoints(store, self.root, i, servers) for i, store in enumerate(stores)
        ]
        self._users = self._worker.table("users", width, **ADAGRAD)
        self._kernel: SimpleNamespace | None = None

    def set(self, rows: Mapping[int, float]) -> None:
        """Sets all numbers of the rows of some ids to a value."""
        ids = tf.constant(list(rows), tf.int64)
        values = np.repeat(np.array(list(rows.values()), np.float32)[:, None], self.width, 1)
        self._worker.client.tables.edit(self._users, EditKind.UPSERT, ids, tf.constant(values))

    def remove(self, *ids: int) -> None:
        """Removes rows."""
        none = tf.zeros([0], tf.float32)
        self._worker.client.tables.edit(
            self._users, EditKind.REMOVE, tf.constant(ids, tf.int64), none
        )

    def set_variable(self, values: Sequence[float]) -> None:
        """Sets a variable "kernel" on the first server."""
        if self._kernel is None:
            shard = SimpleNamespace(server=0, name="kernel", first=0, count=len(values))
            parameter = self._worker.client.parameters.add("kernel", tf.float32, [shard])
            variable = tf.Variable(tf.zeros(len(values)))
            self._worker.client.parameters.initial_value(parameter, variable)
            self._kernel = SimpleNamespace(
                name="kernel", handle=variable.handle, parameter=parameter, variable=variable
            )
        self._kernel.variable.assign(values)
        self._worker.client.parameters.set([self._kernel], write=True)
        self._worker.client.flush(10.0)

    def add_table(self, name: str) -> None:
        """Makes a further table, without rows."""
        self._worker.table(name, self.width, **ADAGRAD)

    def save(self, full: bool = False) -> int:
        """Writes a snapshot of all servers and the manifest; returns its number."""
        return self._save(full, lambda number: None)

    def save_damaged(self) -> int:
        """As `save`, but a bit of the last server's rows is wrong."""

        def damage(number: int) -> None:
            last = len(self.checkpoints) - 1
            path = Path(layout.path(layout.directory(self.root, last, last + 1), number, "rows"))
            content = bytearray(path.read_bytes())
            content[-60] ^= 1
            path.write_bytes(content)

        return self._save(False, damage)

    def _save(self, full: bool, before_manifest: Callable[[int], None]) -> int:
        number = snapshot.next_number(self.root, len(self.checkpoints))
        files = [checkpoints.save(number, full) for checkpoints in self.checkpoints]
        before_manifest(number)
        snapshot.write_manifest(self.root, number, files)
        return number


def addresses(count: int) -> list[str]:
    """Returns addresses of this machine for so many servers."""
    return [f"127.0.0.1:{port}" for port in free_ports(count)]


@contextlib.contextmanager
def serving(
    root: Path | str,
    group: list[str],
    index: int,
    replicas: int = 1,
    follow: float | None = None,
    settings: Settings | None = None,
) -> Iterator[TableServer]:
    """Runs a server of tables in a thread."""
    server = TableServer(
        str(root), ServerGroup.of(group, index), replicas, settings or Settings(), follow
    )
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()


def write_model(
    folder: Path,
    width: int = 4,
    table: str = "users",
    variables: Mapping[str | None, Sequence[int]] | None = None,
) -> str:
    """Writes a SavedModel whose `serve` returns the rows of ids; returns its folder.

    Args:
      folder: the SavedModel's.
      width: of the rows.
      table: the table's name.
      variables: the shapes of further variables by their names on servers, or `None`.
    """
    variables = variables or {}
    client = tf.Variable(0, dtype=tf.int64, trainable=False)
    lookup = ServedTable(table, width, client)
    module = tf.__internal__.tracking.AutoTrackable()
    setattr(module, served_models.CLIENT, [client])
    spec = tf.TensorSpec([None], tf.int64)
    module.variables = [tf.Variable(tf.zeros(shape)) for shape in variables.values()]
    module.serve = tf.function(lookup.lookup, input_signature=[spec])
    tf.saved_model.save(module, str(folder), signatures=module.serve)
    ServedModelFile({table: width}, list(variables)).write(str(folder))
    return str(folder)


def values_of(model: object, ids: list[int]) -> list[float]:
    """Returns the first number of the row of each id."""
    return model.serve(tf.constant(ids, tf.int64))[:, 0].numpy().tolist()
