"""A parameter server's store of rows and TensorFlow's hash tables: memory and speed, in one run.

    python benchmarks/embedding_store.py [--rows 10000000] [--width 16] [--batch 100000]
                                         [--rounds 10] [--threads 2] [--folder FOLDER]
                                         [--json FILE]

Both stores get the same rows of float32, each with an Adagrad accumulator: tfdist's, in the process
of a parameter server whose only worker uses loopback TCP; and TensorFlow's
`tf.lookup.experimental.MutableHashTable`, one for rows and one for accumulators, in the process
that uses them.

    bytes     growth per row of the process that holds the rows, and its multiple of the bytes of
              the row's elements and accumulator
    insert    rows made per second, over all rows, so that it includes the growth of the store
    look up   rows read per second
    update    rows per second with an Adagrad gradient; hash tables read and write back

Ids are random 64-bit integers; a batch has `--batch` different ones in random order. Rows are
verified after each round. Implementations are timed in turn, round by round; rates of look-ups and
updates are medians over the rounds, of five batches each.

At the end tfdist's rows are written in a snapshot while the worker continues to read and update
rows; then the same number of bytes is written without tfdist.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags
from baselines.processes import Remote
from baselines.row_stores import HashTables, TfdistClient, TfdistServer
from reporting import charts, results

ROWS = flags.DEFINE_integer("rows", 10_000_000, "in all", lower_bound=100)
WIDTH = flags.DEFINE_integer("width", 16, "of a row", lower_bound=1)
BATCH = flags.DEFINE_integer("batch", 100_000, "ids in a call", lower_bound=1)
ROUNDS = flags.DEFINE_integer("rounds", 10, "each makes a part of the rows", lower_bound=3)
THREADS = flags.DEFINE_integer("threads", 2, "of TensorFlow, in each process", lower_bound=1)
FOLDER = flags.DEFINE_string("folder", None, "temporary place of the snapshot")
JSON = flags.DEFINE_string("json", None, "file to write the figures to; a chart beside it")

LOOKED_UP = 5  # batches in a round, and as many updated
RATES = {"insert": "insert", "look_up": "look up", "update": "update"}


class Implementation:
    """A store, and its measurements.

    Args:
      user: the process that calls it.
      holder: the process that holds its rows.
    """

    def __init__(self, user: Remote, holder: Remote) -> None:
        self.user, self._holder = user, holder
        self._seconds: dict[str, list[tuple[int, float]]] = {what: [] for what in RATES}
        for what in RATES:  # traces the functions
            user.call(what, np.arange(0))
        holder.call("begin")

    def time(self, what: str, parts: list[np.ndarray]) -> None:
        """Times a method with each of these batches of numbers."""
        seconds = sum(self.user.call(what, part) for part in parts)
        self._seconds[what].append((sum(map(len, parts)), seconds))

    def figures(self) -> dict[str, float]:
        """The figures of the store."""
        figures = {"bytes": self._holder.call("grown") / ROWS.value}
        for what, timed in self._seconds.items():
            if what == "insert":
                figures[what] = sum(rows for rows, _ in timed) / sum(s for _, s in timed)
            else:
                figures[what] = statistics.median(rows / seconds for rows, seconds in timed)
        return figures


def batches(numbers: np.ndarray) -> list[np.ndarray]:
    return np.split(numbers, range(BATCH.value, len(numbers), BATCH.value))


def measure(implementations: dict[str, Implementation]) -> dict[str, dict[str, float]]:
    """The figures of each."""
    random = np.random.default_rng(1)
    parts = np.array_split(np.arange(ROWS.value), ROUNDS.value)
    updates = np.zeros(ROWS.value, np.int64)
    for part in parts:
        random.shuffle(part)
        there = part.max() + 1
        count = min(there, LOOKED_UP * BATCH.value)
        chosen = random.choice(there, count, replace=False, shuffle=False)
        random.shuffle(chosen)
        updates[chosen] += 1
        for implementation in implementations.values():
            implementation.time("insert", batches(part))
            implementation.time("look_up", batches(chosen))
            implementation.time("update", batches(chosen))
            for times in np.unique(updates[:there]):
                verified = np.flatnonzero(updates[:there] == times)[: BATCH.value]
                implementation.user.call("verify", verified, int(times))
    held = implementations["MutableHashTable"].user.call("count")
    if held != ROWS.value:
        raise AssertionError(f"MutableHashTable: expected {ROWS.value} rows, found {held}")
    return {name: implementation.figures() for name, implementation in implementations.items()}


def measure_snapshot(server: Remote, client: Remote, folder: Path) -> dict[str, float]:
    """The speed of writing all rows, and the time of a worker's steps meanwhile."""
    numbers = np.random.default_rng(2).choice(ROWS.value, min(ROWS.value, 200_000), replace=False)

    def steps_during(work: Callable[[], Any], name: str) -> tuple[Any, list[float]]:
        client.begin("steps", numbers, str(folder / name))
        result = work()
        (folder / name).touch()
        return result, [1e3 * seconds for seconds in client.end()]

    _, before = steps_during(lambda: time.sleep(1), "rested")
    (size, seconds), during = steps_during(
        lambda: server.call("save", str(folder / "snapshots")), "saved"
    )
    return {
        "bytes": size,
        "rate": size / seconds,
        "disk": size / server.call("write", str(folder / "disk"), size),
        "step": statistics.median(before),
        "longest_before": max(before),
        "step_during": statistics.median(during),
        "longest": max(during),
    }


def show_snapshot(figures: dict[str, float]) -> None:
    mb = 1e6
    print(
        f"\nsnapshot of all rows: {figures['bytes'] / mb:.0f} MB at {figures['rate'] / mb:.0f} MB/s"
        f" (the disk alone: {figures['disk'] / mb:.0f} MB/s)\n"
        f"a worker's steps of 1000 rows: {figures['step']:.1f} ms, at most "
        f"{figures['longest_before']:.1f} ms; meanwhile {figures['step_during']:.1f} ms, at most "
        f"{figures['longest']:.1f} ms"
    )


def show(figures: dict[str, dict[str, float]], raw: int) -> None:
    print(
        f"\n{ROWS.value} rows of {WIDTH.value} float32 with an accumulator ({raw} bytes), batches "
        f"of {BATCH.value}, {THREADS.value} threads, {os.cpu_count()} processors\n"
    )
    print(f"{'':>18} {'bytes a row':>12} {'of raw':>7}", end="")
    print("".join(f" {name + 's/s':>12}" for name in RATES.values()))
    for name, of_one in figures.items():
        print(f"{name:>18} {of_one['bytes']:12.1f} {of_one['bytes'] / raw:6.2f}x", end="")
        print("".join(f" {of_one[what]:12.0f}" for what in RATES))
    ours, theirs = figures["tfdist"], figures["MutableHashTable"]
    print(f"{'tfdist is faster':>18} {'':>20}", end="")
    print("".join(f" {ours[what] / theirs[what]:11.1f}x" for what in RATES))


def draw(file: Path, figures: dict[str, dict[str, float]]) -> None:
    groups = {
        title: {name: of_one[what] for name, of_one in figures.items()}
        for what, title in RATES.items()
    }
    title = f"{ROWS.value} rows of {WIDTH.value} float32 with an accumulator"
    charts.bars(file, title, "rows per second", groups)


def main(argv: list[str]) -> None:
    del argv
    with contextlib.ExitStack() as stack:

        def start(make: type, *arguments: Any) -> Remote:
            remote = Remote(make, *arguments)
            stack.callback(remote.stop)
            return remote

        key = secrets.token_bytes(32)
        server = start(TfdistServer, key)
        client = start(TfdistClient, WIDTH.value, THREADS.value, key, *server.call("address"))
        tables = start(HashTables, WIDTH.value, THREADS.value)
        implementations = {
            "MutableHashTable": Implementation(tables, tables),
            "tfdist": Implementation(client, server),
        }
        figures = measure(implementations)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=FOLDER.value)))
        snapshot = measure_snapshot(server, client, folder)
    raw = 2 * WIDTH.value * 4
    show(figures, raw)
    show_snapshot(snapshot)
    report = {"rows": ROWS.value, "raw_bytes": raw, "figures": figures, "snapshot": snapshot}
    results.save(JSON.value, report, lambda file: draw(file, figures))


if __name__ == "__main__":
    # For the processes, which are forked from a process that has imported TensorFlow.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    app.run(main)
