"""Two parameter servers and a worker in one process, with tables."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.ops.ps.client import ParameterClient
from tfdist.ops.ps.server import ParameterServer
from tfdist.ops.ps.table_config import InitializerKind, RowInitializer, TableConfig
from tfdist.ps.config import PsConfig
from tfdist.strategies._variables.parameters import Parameters
from tfdist.strategies._variables.placement import Placement

KEY = bytes(range(32))
CONFIG = PsConfig.make(1, worker_timeout=20.0, start_timeout=20.0)


@dataclasses.dataclass(eq=False)
class Table:
    table: int
    width: int
    variable: Any
    wire_dtype: tf.DType = tf.float32

    @property
    def handle(self):
        return self.variable.handle


class Job:
    """Two servers, and a worker."""

    def __init__(self) -> None:
        self.servers = [ParameterServer(i, CONFIG) for i in range(2)]
        self.client = ParameterClient(0, 1, 1234, 2, timeout=20.0)
        for i, server in enumerate(self.servers):
            server.start(KEY)
            self.client.connect(i, f"127.0.0.1:{server.port}", KEY, server.incarnation, 20.0)
        self.parameters = Parameters(self.client, Placement(2), is_chief=True)
        self.tables: list[Table] = []

    def table(self, width: int, **fields) -> Table:
        name = f"table {len(self.tables)}"
        uniform = RowInitializer(InitializerKind.UNIFORM, -1.0, 1.0, len(self.tables))
        table_id = self.client.tables.create(name, TableConfig(width=width, initializer=uniform))
        # It has no rows; steps pull and push it.
        parameter = self.parameters.add(name, (0, width), tf.float32)
        value = self.parameters.initial_value(parameter, tf.zeros((0, width)))
        variable = self.parameters.adopt(tf.Variable(value), parameter)
        self.tables.append(Table(table_id, width, variable, **fields))
        return self.tables[-1]

    def rows(self, table: Table, ids) -> np.ndarray:
        """Returns the servers' current rows."""
        return self.client.tables.lookup([table], [tf.constant(ids, tf.int64)], False)[0].numpy()

    def update(self, table: Table, ids, gradients) -> None:
        """Makes a step of SGD with a learning rate of 1."""
        with self.parameters.step():
            self.parameters.stage_rows(
                [table],
                [tf.constant(ids, tf.int64)],
                [gradients],
                [tf.constant(1.0)],
                tf.constant(1),
            )
        self.client.flush(20.0)

    def close(self) -> None:
        self.client.close()
        for server in self.servers:
            server.close()


def counted(job: Job, run) -> dict[str, int]:
    """Returns the increase of each counter during `run`."""
    before = dataclasses.asdict(job.client.stats())
    run()
    after = dataclasses.asdict(job.client.stats())
    return collections.defaultdict(int, {n: after[n] - before[n] for n in before})
