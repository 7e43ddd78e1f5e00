"""Tables on parameter servers in one process, for tests: made, looked up, pushed to."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import tensorflow as tf

from tfdist import ops
from tfdist.ps.checkpoint.checkpoint import Checkpoints
from tfdist.ps.config import PsConfig

KEY = bytes(32)
# Closes every server and client that was made here; a fixture of all tests does so at their end.
OPEN = contextlib.ExitStack()
# Of a table's configuration.
ADAGRAD = {
    "optimizer": ops.OptimizerConfig(kind=ops.OptimizerKind.ADAGRAD),
    "first_slots": (0.1, 0, 0),
    "initializer": ops.RowInitializer(ops.InitializerKind.UNIFORM, -1, 1, 7),
}


def start_server(index: int = 0, workers: int = 1, **options) -> ops.ParameterServer:
    """Returns a server that nobody was let in to yet."""
    server = ops.ParameterServer(index, PsConfig.make(workers, **options))
    OPEN.callback(server.close)
    return server


class Tables:
    """What a worker does with tables.

    Args:
      client: its connections.
    """

    def __init__(self, client: ops.ParameterClient) -> None:
        self.client = client
        self._steps = 0

    def table(self, name: str, width: int = 2, **config) -> SimpleNamespace:
        """Creates a table; it is what `ParameterClient.lookup` expects."""
        number = self.client.create_table(name, ops.TableConfig(width=width, **config))
        shard = SimpleNamespace(server=0, name=name, first=0, count=0)
        parameter = self.client.add_parameter(name, tf.float32, [shard])
        variable = tf.Variable(self.client.initial_value(parameter, tf.zeros([0, width])))
        return SimpleNamespace(
            name=name,
            table=number,
            width=width,
            handle=variable.handle,
            parameter=parameter,
            variable=variable,
        )

    def lookup(self, table, ids, training: bool = True) -> np.ndarray:
        """Rows of ids."""
        ids = tf.constant(ids, tf.int64)
        return self.client.lookup([table], [ids], training)[0].numpy()

    def push(self, table, ids, gradients, rate: float = 1.0, wait: bool = True) -> None:
        """One step with these gradients; to `wait` is until the servers have acknowledged it."""
        self._steps += 1
        self.client.pull([table], begins_step=True)
        self.client.stage_rows(
            [table],
            [tf.constant(ids, tf.int64)],
            [tf.constant(gradients, tf.float32)],
            [tf.constant(rate)],
            tf.constant(self._steps),
        )
        self.client.push([table])
        if wait:
            self.client.flush(10.0)


class Worker(Tables):
    """A worker that is connected to servers, which it starts.

    Args:
      servers: of the job.
      rank: its own.
      workers: how many there are.
      start: the servers let nobody in yet.
      process: the number of its process.
    """

    def __init__(
        self,
        servers: Sequence[ops.ParameterServer],
        rank: int = 0,
        workers: int = 1,
        start: bool = True,
        process: int = 1000,
    ) -> None:
        super().__init__(ops.ParameterClient(rank, workers, process + rank, len(servers)))
        OPEN.callback(self.client.close)
        for i, server in enumerate(servers):
            if start:
                server.start(KEY)
            address = f"127.0.0.1:{server.port}"
            self.client.connect(i, address, KEY, server.incarnation, 10.0)


def rows_of(server: ops.ParameterServer) -> dict[str, dict[int, bytes]]:
    """All rows of a server by table and id: value, slots, times of use and counts, bit for bit."""
    found: dict[str, dict[int, bytes]] = {}
    with server.checkpoint(False, None) as image:
        for table in image.tables:
            rows = found.setdefault(table.name, {})
            for bit in table.bits():
                for i, row in enumerate(bit.ids.tolist()):
                    assert row not in rows
                    head = bit.used[i].tobytes() + bit.counts[i].tobytes()
                    rows[row] = head + bit.content[i].tobytes()
    return found


def dumped(worker: Tables, table) -> dict[int, bytes]:
    """The rows of a table on the first server, as `rows_of` gives them, but as a worker reads them.

    `rows_of` takes a copy, so that what the server saves next as changed is what changed since.
    """
    found = {}
    for bit in ops.scan_rows(worker.client, table, 0, slots=True):
        for i, row in enumerate(bit.ids.tolist()):
            head = bit.used[i].tobytes() + bit.counts[i].tobytes()
            found[row] = head + bit.content[i].tobytes()
    return found


def restored(root, server: int = 0, servers: int = 1) -> tuple[ops.ParameterServer, str | None]:
    """Returns a server that goes on from what was saved, and from what."""
    store = start_server(server)
    return store, Checkpoints(store, str(root), server, servers).restore()


def train(worker: Tables, table, seed: int, count: int = 500, steps: int = 3) -> None:
    """Looks up ids, of which some come often, and pushes random gradients."""
    random = np.random.default_rng(seed)
    for _ in range(steps):
        ids = random.zipf(1.3, count) % 100_000
        worker.lookup(table, ids)
        worker.push(table, ids, random.normal(size=[count, table.width]))
