"""A table on two servers, of which one is killed while deltas arrive: requests and freshness.

    python benchmarks/served_tables.py [--rows 50000000] [--width 8] [--batch 1024] [--seconds 30]
                                       [--delta 50000] [--every 2] [--folder FOLDER] [--json FILE]

Two processes of `tfdist ps serve --replicas 2 --follow` hold all rows of a synthetic snapshot each.
This process looks up batches of zipfian ids, one after the other, in a `tf.function`, as a loaded
model does. Meanwhile it writes a delta of `--delta` rows `--every` seconds, in the form in which
`tfdist ps follow` writes them, and halfway it kills the first server. Every row of every answer is
verified.

    load        seconds in which a server reads the snapshot, and its memory afterwards
    request     milliseconds of a request: median, 99th percentile, and the longest, before the kill
                and from the kill on
    failed      requests that raised an error, in all
    fresh       seconds from the end of a delta's writing to the first answer that has it
    cached      the same requests as before the kill, from a cache of rows of at most a second's age
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf
from absl import app, flags
from baselines.table_servers import connected
from reporting import charts, results

from tfdist.launch.ports import free_ports
from tfdist.ops import library
from tfdist.ops.ps.saved_rows import SavedRows
from tfdist.ops.ps.snapshot import SavedTable
from tfdist.ops.ps.table_config import TableConfig
from tfdist.ps.checkpoint import files, layout, rows_file, snapshot
from tfdist.serving.tables.connection import TableConnection

ROWS = flags.DEFINE_integer("rows", 50_000_000, "of the table", lower_bound=1000)
WIDTH = flags.DEFINE_integer("width", 8, "of a row", lower_bound=2)
BATCH = flags.DEFINE_integer("batch", 1024, "ids of a request", lower_bound=1)
SECONDS = flags.DEFINE_float("seconds", 30, "of requests", lower_bound=1)
DELTA = flags.DEFINE_integer("delta", 50_000, "rows of a delta", lower_bound=1)
EVERY = flags.DEFINE_float("every", 2, "seconds between two deltas", lower_bound=0.1)
FOLDER = flags.DEFINE_string("folder", None, "temporary place of the snapshot")
JSON = flags.DEFINE_string("json", None, "file to write the figures to; a chart beside it")

CHUNK = 1 << 18
TABLE = "rows"


class Snapshots:
    """The synthetic snapshots of one parameter server.

    A row begins with its id modulo 1000, and the time of its delta; the time of all is 0 at first.

    Args:
      root: the folder.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._folder = layout.directory(root, 0, 1)
        self._base: tuple[int, int] | None = None
        self.number = 0

    def write(self, ids: np.ndarray, value: float) -> None:
        """Writes a snapshot in which these rows have a value: the whole one first, then a delta."""
        tf.io.gfile.makedirs(self._folder)
        number = self.number + 1
        path = layout.path(self._folder, number, "rows")
        about = rows_file.About(number, self._base, [_description()])
        pieces = ((0, _rows(ids[i : i + CHUNK], value)) for i in range(0, len(ids), CHUNK))
        with files.replaced(path, in_order=True) as file:
            written = rows_file.write_rows(file, about, pieces)
        none = np.zeros(0, np.uint64)
        part = snapshot.write(
            self._folder, snapshot.Snapshot(number, {}, none, rows=written.checksum)
        )
        snapshot.write_manifest(self._root, number, [part])
        self._base, self.number = (number, written.checksum), number


def _description() -> SavedTable:
    """Describes the table as a parameter server does, by making one."""
    from tfdist.ops.ps.client import ParameterClient
    from tfdist.ops.ps.server import ParameterServer
    from tfdist.ps.config import PsConfig

    with contextlib.ExitStack() as stack:
        server = ParameterServer(0, PsConfig.make(1))
        stack.callback(server.close)
        server.start(bytes(32))
        client = ParameterClient(0, 1, 1, 1)
        stack.callback(client.close)
        client.connect(0, f"127.0.0.1:{server.port}", bytes(32), server.incarnation, 10.0)
        client.tables.create(TABLE, TableConfig(width=WIDTH.value))
        with server.checkpoint(False, None) as held:
            (table,) = held.tables
            return SavedTable(TABLE, table.description, WIDTH.value, 0.0, 0)


def _rows(ids: np.ndarray, value: float) -> SavedRows:
    content = np.zeros([len(ids), WIDTH.value], np.float32)
    content[:, 0] = ids % 1000
    content[:, 1] = value
    none = np.zeros(len(ids), np.uint32)
    return SavedRows(ids, none, none, content, np.zeros(0, np.int64))


@contextlib.contextmanager
def servers(root: str, addresses: list[str]) -> Iterator[list[subprocess.Popen]]:
    """Starts the two servers of the snapshot, and ends them."""
    command = [sys.executable, "-m", "tfdist", "ps", "serve", root, "--replicas", "2", "--follow"]
    command += ["--look-every", "0.2", "--servers", ",".join(addresses)]
    started = [subprocess.Popen([*command, "--index", str(index)]) for index in range(2)]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def memory_of(process: subprocess.Popen) -> float:
    """Returns the resident gigabytes of a process."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 2**20


class Requests:
    """Looks up batches, one after the other, and verifies every row.

    Args:
      connection: to the servers.
    """

    def __init__(self, connection: TableConnection) -> None:
        self._random = np.random.default_rng(1)
        handle, width = connection.client.handle, WIDTH.value

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
        def look_up(ids: tf.Tensor) -> tf.Tensor:
            return library.graph_ops().tfdist_served_lookup(
                client=tf.constant(handle, tf.int64), ids=ids, table=TABLE, width=width
            )

        self._look_up = look_up
        self.failed = 0

    def run(self, seconds: float, newest: dict[float, float]) -> list[float]:
        """Makes requests; returns the seconds that each took.

        Args:
          seconds: of all requests together.
          newest: gets the time at which the value of a delta was first seen.
        """
        times = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            ids = self._random.zipf(1.2, BATCH.value) % ROWS.value
            began = time.monotonic()
            try:
                rows = self._look_up(tf.constant(ids)).numpy()
            except tf.errors.OpError as error:
                self.failed += 1
                print(f"failed: {error.message}", flush=True)
                continue
            finally:
                times.append(time.monotonic() - began)
            assert (rows[:, 0] == ids % 1000).all()
            newest.setdefault(float(rows[:, 1].max()), time.monotonic())
        return times


def write_deltas(snapshots: Snapshots, written: dict[float, float], stop: threading.Event) -> None:
    """Writes deltas of the most frequent ids, and notes the time of each by its value."""
    while not stop.wait(EVERY.value):
        value = float(snapshots.number)
        snapshots.write(np.arange(DELTA.value), value)
        written[value] = time.monotonic()


def describe(times: list[float]) -> str:
    """Returns median, 99th percentile and maximum in milliseconds."""
    ordered = sorted(1000 * one for one in times)
    late = ordered[int(0.99 * len(ordered))]
    return f"{statistics.median(ordered):.2f}  {late:.2f}  {ordered[-1]:.1f}"


def main(_: list[str]) -> None:
    os.environ.setdefault("TFDIST_SECRET", secrets.token_hex(32))
    root = tempfile.mkdtemp(dir=FOLDER.value)
    try:
        measure(root)
    finally:
        shutil.rmtree(root)


def measure(root: str) -> None:
    snapshots = Snapshots(root)
    snapshots.write(np.arange(ROWS.value), 0.0)
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    began = time.monotonic()
    with servers(root, addresses) as processes:
        connection = connected(addresses, processes)
        loaded = time.monotonic() - began
        memory = max(map(memory_of, processes))
        table = connection.client.tables.create(TABLE, TableConfig(width=WIDTH.value))
        requests = Requests(connection)
        requests.run(1.0, {})  # warms up
        seen: dict[float, float] = {}
        written: dict[float, float] = {}
        stop = threading.Event()
        writer = threading.Thread(target=write_deltas, args=(snapshots, written, stop))
        writer.start()
        before = requests.run(SECONDS.value / 2, seen)
        processes[0].kill()
        after = requests.run(SECONDS.value / 2, seen)
        stop.set()
        writer.join()
        connection.client.tables.set_served_cache(table, 100_000, 1.0)
        cached = requests.run(min(5.0, SECONDS.value / 2), {})
        connection.close()
    fresh = [seen[value] - written[value] for value in written if value in seen]
    print(f"{ROWS.value:,} rows of {WIDTH.value} floats on each of 2 servers; one is killed")
    print(f"load     {loaded:.1f} s, {memory:.1f} GB a server")
    print(f"request  of {BATCH.value} ids: ms      median  99 %  longest")
    print(f"         before the kill, {len(before)}:  {describe(before)}")
    print(f"         from the kill on, {len(after)}: {describe(after)}")
    print(f"         cached, {len(cached)}:           {describe(cached)}")
    print(f"failed   {requests.failed}")
    print(
        f"fresh    {len(fresh)} deltas of {DELTA.value} rows: median "
        f"{statistics.median(fresh):.2f} s, longest {max(fresh):.2f} s"
    )

    requests_ms = {
        name: {
            "median": 1000 * statistics.median(times),
            "99 %": 1000 * sorted(times)[int(0.99 * len(times))],
            "longest": 1000 * max(times),
        }
        for name, times in (("before", before), ("from the kill on", after), ("cached", cached))
    }
    figures = {
        "load": loaded,
        "memory": memory,
        "requests": requests_ms,
        "failed": requests.failed,
        "fresh": fresh,
    }
    title = f"Requests of {BATCH.value} ids to {ROWS.value:,} rows"
    results.save(
        JSON.value,
        figures,
        lambda file: charts.bars(file, title, "milliseconds", requests_ms, log=True),
    )


if __name__ == "__main__":
    app.run(main)
