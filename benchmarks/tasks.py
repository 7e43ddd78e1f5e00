"""Data tasks: their cost in a step, and how many requests the master answers.

    python benchmarks/tasks.py [--rounds 15] [--workers 16] [--tasks 4000] [--json FILE]

The first table is the model of keras_examples/fashion_mnist.py on batches of 128 images, in one
process: from `tf.data.Dataset.from_tensor_slices`, and from `tfdist.data.from_arrays` in tasks of
1,000 records. Epochs of both are timed in turn, the order changes each round, and the difference is
the median over the rounds. Both make the same number of steps.

The second one is a master in its own process, and simulated workers in two others: each takes a
task, commits it at once and takes the next one, over loopback. Once as fast as they can, and once
at 1,000 requests a second in all; with a shared secret, so that each request is signed, and
without. All records must be committed exactly once.
"""

from __future__ import annotations

import contextlib
import os
import statistics
from pathlib import Path
from typing import Any

from absl import app, flags
from baselines.processes import Remote, call
from baselines.task_workers import Master, Trainer, Workers
from reporting import charts, results

from tfdist.launch.ports import free_ports

ROUNDS = flags.DEFINE_integer("rounds", 15, "epochs of each kind of data", lower_bound=1)
WORKERS = flags.DEFINE_integer("workers", 16, "simulated workers", lower_bound=2)
TASKS = flags.DEFINE_integer("tasks", 4000, "that they take", lower_bound=1)
JSON = flags.DEFINE_string("json", None, "file to write the figures to; a chart beside it")

MAX_COST, MIN_RATE = 0.02, 1000.0
PLAIN, OURS = "from_tensor_slices", "from_arrays in tasks"


def measure_cost(rounds: int) -> dict[str, Any]:
    """Times steps on both kinds of data, in turns."""
    with contextlib.ExitStack() as stack:
        trainers = {PLAIN: Remote(Trainer, "{}", False), OURS: Remote(Trainer, "{}", True)}
        for trainer in trainers.values():
            stack.callback(trainer.stop)
            trainer.call("epoch")
        pairs = []
        for i in range(rounds):
            found = {}
            for name in list(trainers)[:: 1 if i % 2 else -1]:
                seconds, steps = trainers[name].call("epoch")
                found[name] = seconds / steps
            pairs.append(found)
        steps = {trainer.call("trained") for trainer in trainers.values()}
        if len(steps) > 1:
            raise AssertionError(f"expected as many steps on both kinds of data, found {steps}")
    medians = {name: statistics.median(pair[name] for pair in pairs) for name in trainers}
    difference = statistics.median(pair[OURS] - pair[PLAIN] for pair in pairs)
    return {"seconds": medians, "difference": difference, "cost": difference / medians[PLAIN]}


def measure_master(secret: bytes | None, workers: int, tasks: int) -> list[dict[str, Any]]:
    """Simulates workers; returns a row for each load."""
    (port,) = free_ports(1)
    rows = []
    with contextlib.ExitStack() as stack:
        master = Remote(Master, port, workers, secret)
        stack.callback(master.stop)
        halves = [
            Remote(Workers, port, workers, list(range(half, workers, 2)), secret)
            for half in range(2)
        ]
        for half in halves:
            stack.callback(half.stop)
        call(halves, "run", "warm-up", 10 * workers, 0.0)
        for name, rate in (("all they can", 0.0), (f"{MIN_RATE:g}/s", MIN_RATE / workers)):
            found = call(halves, "run", name, tasks, rate)
            times = sorted(seconds for of_half, _ in found for seconds in of_half)
            if master.call("committed", name) != 1000 * tasks:
                raise AssertionError(f"{name}: not every record was committed once")
            rows.append(
                {
                    "load": name,
                    "signed": secret is not None,
                    "requests": len(times),
                    "per_second": len(times) / max(seconds for _, seconds in found),
                    "median": statistics.median(times),
                    "p99": times[int(0.99 * len(times))],
                    "maximum": times[-1],
                }
            )
    return rows


def show(cost: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    verdict = "reached" if cost["cost"] <= MAX_COST else "missed"
    print("\nA step of the Fashion-MNIST example, 128 images, milliseconds\n")
    for name, seconds in cost["seconds"].items():
        print(f"{name:>22} {1e3 * seconds:8.2f}")
    print(
        f"{'difference':>22} {1e3 * cost['difference']:8.3f}  {cost['cost']:.2%} of a step, goal "
        f"{MAX_COST:.0%}: {verdict}"
    )
    print(f"\nRequests of {WORKERS.value} simulated workers\n")
    heads = [("load", 14), ("signed", 7), ("requests/s", 11)]
    heads += [("median ms", 10), ("p99 ms", 8), ("max ms", 8)]
    print(" ".join(f"{head:>{width}}" for head, width in heads))
    for row in rows:
        numbers = [1e3 * row[name] for name in ("median", "p99", "maximum")]
        print(
            f"{row['load']:>14} {'yes' if row['signed'] else 'no':>7} {row['per_second']:11.0f} "
            f"{numbers[0]:10.2f} {numbers[1]:8.2f} {numbers[2]:8.2f}"
        )


def draw(file: Path, rows: list[dict[str, Any]]) -> None:
    groups = {
        f"{row['load']}, {'signed' if row['signed'] else 'without a secret'}": {
            name: 1e3 * row[name] for name in ("median", "p99", "maximum")
        }
        for row in rows
    }
    charts.bars(file, "Answer of the master of data tasks", "milliseconds", groups, log=True)


def main(argv: list[str]) -> None:
    del argv
    cost = measure_cost(ROUNDS.value)
    rows = []
    for secret in (None, os.urandom(32)):
        rows += measure_master(secret, WORKERS.value, TASKS.value)
    show(cost, rows)
    figures = {"step": cost, "workers": WORKERS.value, "rows": rows}
    results.save(JSON.value, figures, lambda file: draw(file, rows))


if __name__ == "__main__":
    # For the processes, which are forked from a process that has imported TensorFlow.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    app.run(main)
