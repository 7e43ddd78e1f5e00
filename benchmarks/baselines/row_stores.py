"""The two stores of rows that benchmarks/embedding_store.py compares.

Rows are float32, each with an Adagrad accumulator of the same width. Each timed method returns its
seconds; its ids and gradients exist before.
"""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

import numpy as np

INITIAL = 0.5  # value of a row's elements
ACCUMULATOR = 0.1
LEARNING_RATE = 0.01
EPSILON = 1e-7
GRADIENT = 0.25
PATIENCE = 60.0  # seconds


def ids_of(numbers: np.ndarray) -> np.ndarray:
    """A distinct int64 id for each number, spread over 64 bits: its multiple by an odd number."""
    return (numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)


def after(updates: int) -> float:
    """The value of a row's elements after `updates` updates."""
    value, accumulator = INITIAL, ACCUMULATOR
    for _ in range(updates):
        accumulator += GRADIENT**2
        value -= LEARNING_RATE * GRADIENT / np.sqrt(accumulator + EPSILON)
    return value


def resident_bytes() -> int:
    """Resident memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _limit_threads(threads: int) -> None:
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(threads)
    tf.config.threading.set_intra_op_parallelism_threads(threads)


class _Store:
    """Timing and verification of both stores."""

    def insert(self, numbers: np.ndarray) -> float:
        """Makes new rows."""
        return self._timed(self._insert, numbers)

    def look_up(self, numbers: np.ndarray) -> float:
        """Reads existing rows."""
        return self._timed(self._look_up, numbers)

    def update(self, numbers: np.ndarray) -> float:
        """Makes a step of Adagrad with existing rows; each number occurs once."""
        return self._timed(self._update, numbers)

    def verify(self, numbers: np.ndarray, updates: int) -> None:
        """Raises unless these rows have had `updates` updates."""
        import tensorflow as tf

        rows = self._look_up(tf.constant(ids_of(numbers))).numpy()
        expected = np.full((len(numbers), self.width), after(updates))
        np.testing.assert_allclose(rows, expected, 1e-5, err_msg=type(self).__name__)

    def _timed(self, call, numbers: np.ndarray) -> float:
        import tensorflow as tf

        ids = tf.constant(ids_of(numbers))
        start = time.perf_counter()
        call(ids)
        self._finish()
        return time.perf_counter() - start

    def _finish(self) -> None:
        """Waits for pending calls."""


class HashTables(_Store):
    """TensorFlow's: one `MutableHashTable` of rows, and one of accumulators, in this process."""

    def __init__(self, width: int, threads: int) -> None:
        _limit_threads(threads)
        import tensorflow as tf

        self.width = width

        def table(name: str) -> tf.lookup.experimental.MutableHashTable:
            return tf.lookup.experimental.MutableHashTable(
                tf.int64, tf.float32, default_value=tf.zeros([width]), name=name
            )

        rows, accumulators = table("rows"), table("accumulators")

        def insert(ids):
            shape = [tf.size(ids), width]
            rows.insert(ids, tf.fill(shape, INITIAL))
            accumulators.insert(ids, tf.fill(shape, ACCUMULATOR))

        def update(ids):
            accumulated = accumulators.lookup(ids) + GRADIENT**2
            change = LEARNING_RATE * GRADIENT * tf.math.rsqrt(accumulated + EPSILON)
            rows.insert(ids, rows.lookup(ids) - change)
            accumulators.insert(ids, accumulated)

        signature = [tf.TensorSpec([None], tf.int64)]
        self._rows = rows
        self._accumulators = accumulators
        self._insert = tf.function(insert, signature)
        self._look_up = tf.function(rows.lookup, signature)
        self._update = tf.function(update, signature)
        self._before = 0

    def begin(self) -> None:
        """Starts counting memory."""
        self._before = resident_bytes()

    def grown(self) -> int:
        """Bytes of this process, beyond its bytes at `begin`."""
        return resident_bytes() - self._before

    def count(self) -> int:
        """The number of rows."""
        return int(self._rows.size())


class TfdistServer:
    """tfdist's store, in the process of a parameter server."""

    def __init__(self, key: bytes) -> None:
        from tfdist.ops.ps.server import ParameterServer
        from tfdist.ps.config import PsConfig

        self._store = ParameterServer(0, PsConfig.make(workers=1))
        self._store.start(key)
        self._before = 0

    def address(self) -> tuple[str, int]:
        """Its address and incarnation."""
        return f"127.0.0.1:{self._store.port}", self._store.incarnation

    def begin(self) -> None:
        """As of `HashTables`."""
        self._before = resident_bytes()

    def grown(self) -> int:
        """As of `HashTables`."""
        return resident_bytes() - self._before

    def save(self, folder: str) -> tuple[int, float]:
        """Writes a snapshot of all rows; returns its bytes, and seconds until it is on the disk."""
        from tfdist.ps.checkpoint.checkpoint import Checkpoints

        checkpoints = Checkpoints(self._store, folder, 0, 1)
        start = time.perf_counter()
        checkpoints.save(1, full=True)
        seconds = time.perf_counter() - start
        # Without the log, which begins now.
        written = [f for f in Path(folder).rglob("*") if f.suffix in (".rows", ".npz")]
        return sum(f.stat().st_size for f in written), seconds

    def write(self, path: str, size: int) -> float:
        """Seconds to write `size` bytes to the disk."""
        piece = np.random.default_rng(0).bytes(8 << 20)
        start = time.perf_counter()
        with open(path, "wb") as file:
            for _ in range(0, size, len(piece)):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        return time.perf_counter() - start


class TfdistClient(_Store):
    """tfdist's worker, which uses the store over loopback TCP."""

    def __init__(
        self, width: int, threads: int, key: bytes, address: str, incarnation: int
    ) -> None:
        _limit_threads(threads)
        import tensorflow as tf

        from tfdist.ops.ps.client import ParameterClient
        from tfdist.ops.ps.optimizer_config import OptimizerConfig, OptimizerKind
        from tfdist.ops.ps.table_config import InitializerKind, RowInitializer, TableConfig
        from tfdist.strategies._variables.placement import Placement

        self.width = width
        self._client = client = ParameterClient(0, 1, process=1, servers=1)
        client.connect(0, address, key, incarnation, PATIENCE)
        # A step pushes variables; this one has no elements, and represents the table.
        table = _Table(tf.Variable(tf.zeros([0, width])), width)
        shards = Placement(1, 2**25).shards("rows", (0, width), 4)
        table.parameter = client.parameters.add("rows", tf.float32, shards)
        table.variable.assign(client.parameters.initial_value(table.parameter, table.variable))
        table.table = client.tables.create(
            "rows",
            TableConfig(
                width=width,
                optimizer=OptimizerConfig(kind=OptimizerKind.ADAGRAD, epsilon=EPSILON),
                first_slots=(ACCUMULATOR, 0.0, 0.0),
                initializer=RowInitializer(InitializerKind.CONSTANT, INITIAL),
            ),
        )

        def update(ids):
            client.parameters.pull([table], begins_step=True)
            gradients = tf.fill([tf.size(ids), width], GRADIENT)
            client.tables.stage([table], [ids], [gradients], [tf.constant(LEARNING_RATE)], 1)
            client.parameters.push([table])

        signature = [tf.TensorSpec([None], tf.int64)]
        look_up = client.tables.lookup
        self._insert = tf.function(lambda ids: look_up([table], [ids], True)[0], signature)
        self._look_up = tf.function(lambda ids: look_up([table], [ids], False)[0], signature)
        self._update = tf.function(update, signature)

    def steps(self, numbers: np.ndarray, until: str) -> list[float]:
        """Reads and updates rows in batches until the file exists; returns each step's seconds."""
        import tensorflow as tf

        parts = [
            tf.constant(ids_of(part)) for part in np.split(numbers, range(1000, len(numbers), 1000))
        ]
        seconds = []
        for ids in itertools.cycle(parts):
            start = time.perf_counter()
            self._look_up(ids)
            self._update(ids)
            self._finish()
            seconds.append(time.perf_counter() - start)
            if os.path.exists(until):
                return seconds

    def _finish(self) -> None:
        self._client.flush(PATIENCE)


class _Table:
    """The attributes of a table that the client's ops use."""

    def __init__(self, variable, width: int) -> None:
        self.variable = variable
        self.handle = variable.handle
        self.width = width
        self.parameter = self.table = -1
