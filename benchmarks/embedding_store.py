"""The store of a parameter server's embeddings: memory and speed beside hash tables, in one run.

    python benchmarks/embedding_store.py [--rows 10000000] [--width 16] [--batch 100000]
                                         [--rounds 10] [--threads 2] [--folder FOLDER]
                                         [--json FILE]

Both stores get the same rows of float32, each with an Adagrad accumulator: tfdist's, in the process
of a parameter server, whose only worker reaches it over loopback TCP; and TensorFlow's
`tf.lookup.experimental.MutableHashTable`, one for rows and one for accumulators, in the process
that uses them.

    bytes     per row, by which the process that holds the rows has grown, and as a multiple of the
              row's elements and its accumulator's
    insert    rows made per second, over all of them, so that it counts when a store makes itself
              larger
    look up   rows read per second
    update    rows per second with a gradient, of Adagrad; hash tables do it by reading and writing
              back

Ids are anywhere in 64 bits; a batch has `--batch` of them, all different, in random order. Rows
are verified after each round. The contenders take turns, round by round; rates of look-ups and
updates are medians over the rounds, of five batches each.

At the end tfdist's rows are written in a snapshot, while the worker goes on reading and updating
rows, and as many bytes without tfdist.
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
from contenders.processes import Remote
from contenders.row_stores import HashTables, TfdistClient, TfdistServer
from reporting import charts, results

ROWS = flags.DEFINE_integer("rows", 10_000_000, "in all", lower_bound=100)
WIDTH = flags.DEFINE_integer("width", 16, "of a row", lower_bound=1)
BATCH = flags.DEFINE_integer("batch", 100_000, "ids in a call", lower_bound=1)
ROUNDS = flags.DEFINE_integer("rounds", 10, "in each a part of the rows is made", lower_bound=3)
THREADS = flags.DEFINE_integer("threads", 2, "of TensorFlow, in each process", lower_bound=1)
FOLDER = flags.DEFINE_string("folder", None, "where the snapshot is written for a while")
JSON = flags.DEFINE_string("json", None, "file to write the figures to; a chart beside it")

LOOKED_UP = 5  # batches in a round, and as many updated
RATES = {"insert": "insert", "look_up": "look up", "update": "update"}


class Contender:
    """A store, and what was measured of it.

    Args:
      user: the process that calls it.
      holder: the process that holds its rows.
    """

    def __init__(self, user: Remote, holder: Remote) -> None:
        self.user, self._holder = user, holder
        self._seconds: dict[str, list[tuple[int, float]]] = {what: [] for what in RATES}
        for what in RATES:  # makes what is made once
            user.call(what, np.arange(0))
        holder.call("begin")

    def time(self, what: str, parts: list[np.ndarray]) -> None:
        """Times a method with each of these batches of numbers."""
        seconds = sum(self.user.call(what, part) for part in parts)
        self._seconds[what].append((sum(map(len, parts)), seconds))

    def figures(self) -> dict[str, float]:
        """What the store has come to."""
        figures = {"bytes": self._holder.call("grown") / ROWS.value}
        for what, timed in self._seconds.items():
            if what == "insert":
                figures[what] = sum(rows for rows, _ in timed) / sum(s for _, s in timed)
            else:
                figures[what] = statistics.median(rows / seconds for rows, seconds in timed)
        return figures


def batches(numbers: np.ndarray) -> list[np.ndarray]:
    return np.split(numbers, range(BATCH.value, len(numbers), BATCH.value))


def measure(contenders: dict[str, Contender]) -> dict[str, dict[str, float]]:
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
        for contender in contenders.values():
            contender.time("insert", batches(part))
            contender.time("look_up", batches(chosen))
            contender.time("update", batches(chosen))
            for times in np.unique(updates[:there]):
                verified = np.flatnonzero(updates[:there] == times)[: BATCH.value]
                contender.user.call("verify", verified, int(times))
    held = contenders["MutableHashTable"].user.call("count")
    if held != ROWS.value:
        raise AssertionError(f"MutableHashTable: expected {ROWS.value} rows, found {held}")
    return {name: contender.figures() for name, contender in contenders.items()}


def measure_snapshot(server: Remote, client: Remote, folder: Path) -> dict[str, float]:
    """How fast all rows are written, and what that does to a worker's steps meanwhile."""
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
        contenders = {
            "MutableHashTable": Contender(tables, tables),
            "tfdist": Contender(client, server),
        }
        figures = measure(contenders)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=FOLDER.value)))
        snapshot = measure_snapshot(server, client, folder)
    raw = 2 * WIDTH.value * 4
    show(figures, raw)
    show_snapshot(snapshot)
    report = {"rows": ROWS.value, "raw_bytes": raw, "figures": figures, "snapshot": snapshot}
    results.save(JSON.value, report, lambda file: draw(file, figures))


if __name__ == "__main__":
    # For the processes, which are forked from one that has imported TensorFlow.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    app.run(main)
