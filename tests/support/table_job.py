"""Parameter servers with tables, and workers that use them, in one process."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import tensorflow as tf

from tfdist.ops.ps.client import ParameterClient
from tfdist.ops.ps.optimizer_config import OptimizerConfig, OptimizerKind
from tfdist.ops.ps.saved_rows import scan_rows
from tfdist.ops.ps.server import ParameterServer
from tfdist.ops.ps.table_config import InitializerKind, RowInitializer, TableConfig
from tfdist.ps.checkpoint.checkpoint import Checkpoints
from tfdist.ps.config import PsConfig

KEY = bytes(32)
# Closes every server and client made here; a fixture of all tests does so at the end of each test.
OPEN = contextlib.ExitStack()
# Fields of a table's configuration.
ADAGRAD = {
    "optimizer": OptimizerConfig(kind=OptimizerKind.ADAGRAD),
    "first_slots": (0.1, 0, 0),
    "initializer": RowInitializer(InitializerKind.UNIFORM, -1, 1, 7),
}


def start_server(index: int = 0, workers: int = 1, **options) -> ParameterServer:
    """Returns a server that does not accept workers yet."""
    server = ParameterServer(index, PsConfig.make(workers, **options))
    OPEN.callback(server.close)
    return server


class Tables:
    """A worker's operations on tables.

    Args:
      client: the worker's connections.
    """

    def __init__(self, client: ParameterClient) -> None:
        self.client = client
        self._steps = 0

    def table(self, name: str, width: int = 2, **config) -> SimpleNamespace:
        """Creates a table for `ParameterClient.lookup`."""
        table_id = self.client.tables.create(name, TableConfig(width=width, **config))
        shard = SimpleNamespace(server=0, name=name, first=0, count=0)
        parameter = self.client.parameters.add(name, tf.float32, [shard])
        variable = tf.Variable(
            self.client.parameters.initial_value(parameter, tf.zeros([0, width]))
        )
        return SimpleNamespace(
            name=name,
            table=table_id,
            width=width,
            handle=variable.handle,
            parameter=parameter,
            variable=variable,
        )

    def lookup(self, table, ids, training: bool = True) -> np.ndarray:
        """Returns the rows of ids."""
        ids = tf.constant(ids, tf.int64)
        return self.client.tables.lookup([table], [ids], training)[0].numpy()

    def push(self, table, ids, gradients, rate: float = 1.0, wait: bool = True) -> None:
        """Makes one step with these gradients; with `wait`, waits for the acknowledgement."""
        self._steps += 1
        self.client.parameters.pull([table], begins_step=True)
        self.client.tables.stage(
            [table],
            [tf.constant(ids, tf.int64)],
            [tf.constant(gradients, tf.float32)],
            [tf.constant(rate)],
            tf.constant(self._steps),
        )
        self.client.parameters.push([table])
        if wait:
            self.client.flush(10.0)


class Worker(Tables):
    """A worker with connections to servers, which it starts.

    Args:
      servers: of the job.
      rank: the worker's rank.
      workers: the number of workers.
      start: whether to start the servers.
      process: the process number; the worker adds its rank.
    """

    def __init__(
        self,
        servers: Sequence[ParameterServer],
        rank: int = 0,
        workers: int = 1,
        start: bool = True,
        process: int = 1000,
    ) -> None:
        super().__init__(ParameterClient(rank, workers, process + rank, len(servers)))
        OPEN.callback(self.client.close)
        for i, server in enumerate(servers):
            if start:
                server.start(KEY)
            address = f"127.0.0.1:{server.port}"
            self.client.connect(i, address, KEY, server.incarnation, 10.0)


def rows_of(server: ParameterServer) -> dict[str, dict[int, bytes]]:
    """Returns a server's rows by table and id: time of use, count, value and slots, as bytes."""
    found: dict[str, dict[int, bytes]] = {}
    with server.checkpoint(False, None) as snapshot:
        for table in snapshot.tables:
            rows = found.setdefault(table.name, {})
            for chunk in table.chunks():
                for i, row in enumerate(chunk.ids.tolist()):
                    assert row not in rows
                    head = chunk.used[i].tobytes() + chunk.counts[i].tobytes()
                    rows[row] = head + chunk.content[i].tobytes()
    return found


def scanned(worker: Tables, table) -> dict[int, bytes]:
    """Returns a table's rows on the first server in the form of `rows_of`, read by a worker.

    `rows_of` takes a checkpoint, after which the server considers its rows unchanged. A scan does
    not.
    """
    found = {}
    for chunk in scan_rows(worker.client, table, 0, slots=True):
        for i, row in enumerate(chunk.ids.tolist()):
            head = chunk.used[i].tobytes() + chunk.counts[i].tobytes()
            found[row] = head + chunk.content[i].tobytes()
    return found


def restored(root, server: int = 0, servers: int = 1) -> tuple[ParameterServer, str | None]:
    """Returns a server restored from the saved state, and what `Checkpoints.restore` returned."""
    store = start_server(server)
    return store, Checkpoints(store, str(root), server, servers).restore()


def train(worker: Tables, table, seed: int, count: int = 500, steps: int = 3) -> None:
    """Looks up Zipf-distributed ids and pushes random gradients."""
    random = np.random.default_rng(seed)
    for _ in range(steps):
        ids = random.zipf(1.3, count) % 100_000
        worker.lookup(table, ids)
        worker.push(table, ids, random.normal(size=[count, table.width]))
