"""The time that distribution adds to a step of `fit`: tfdist and TensorFlow, in one run.

    python benchmarks/training_step.py [--rounds 5] [--steps 20] [--batch 64] [--scale 1]
                                       [--json FILE]

Two workers on one machine, and one worker alone, train a dense network of 13 M parameters and a
small convolutional one, with SGD and the same batch for each worker:

    tfdist      Keras 3 under `tfdist.MultiWorkerMirroredStrategy`
    TensorFlow  tf_keras under a stock `tf.distribute.MultiWorkerMirroredStrategy` (RING); Keras 3
                does not work there

Every worker has its own processor if the machine has enough. The overhead is the step time of two
workers minus the step time of one. All workers train on the same examples, so two workers reach the
weights of one, which is verified before the timing. Implementations are timed in turn, round by
round. A round is a `fit` and counts as the median of its steps, of the slower worker; the table
shows medians over the rounds.
"""

from __future__ import annotations

import contextlib
import os
import statistics
from pathlib import Path
from typing import Any

from absl import app, flags
from baselines.fit_workers import SKIPPED, StockWorker, TfdistWorker
from baselines.processes import Remote, call
from reporting import charts, results

from tfdist.config.cluster import Cluster
from tfdist.launch.ports import free_ports

ROUNDS = flags.DEFINE_integer("rounds", 5, "counted rounds of each implementation", lower_bound=1)
STEPS = flags.DEFINE_integer("steps", 20, "of a round", lower_bound=SKIPPED + 2)
BATCH = flags.DEFINE_integer("batch", 64, "examples of each worker in a step", lower_bound=1)
SCALE = flags.DEFINE_float("scale", 1, "of the models' widths", lower_bound=0.01)
JSON = flags.DEFINE_string("json", None, "file to write the figures to; a chart beside it")

MODELS = ("dense", "cnn")
WORKERS = (1, 2)
VERIFIED_STEPS = 5
TOLERANCE = 1e-2  # relative, of a variable's change; half a gradient would halve it
GOAL = 1 / 3  # of the stock overhead

# The processes of each job, by implementation and number of workers.
Jobs = dict[tuple[str, int], list[Remote]]


def start_jobs(stack: contextlib.ExitStack) -> Jobs:
    jobs: Jobs = {}
    for count in WORKERS:
        ports = free_ports(2 * count)
        addresses = tuple(f"127.0.0.1:{port}" for port in ports)
        ours, stock = addresses[:count], addresses[count:]
        jobs["tfdist", count] = []
        jobs["TensorFlow", count] = []
        for rank in range(count):
            arguments = (rank, SCALE.value, BATCH.value)
            tf_config = Cluster(workers=ours, task_index=rank).tf_config()
            jobs["tfdist", count].append(Remote(TfdistWorker, *arguments, tf_config))
            stack.callback(jobs["tfdist", count][-1].stop)
            jobs["TensorFlow", count].append(Remote(StockWorker, *arguments, stock))
            stack.callback(jobs["TensorFlow", count][-1].stop)
    return jobs


def verify(jobs: Jobs, model: str) -> None:
    """Raises unless all workers of an implementation have the weights of one alone."""
    for job in jobs.values():
        call(job, "fit", model, VERIFIED_STEPS)
    for (name, count), job in jobs.items():
        expected = jobs[name, 1][0].call("progress", model)
        for rank, progress in enumerate(call(job, "progress", model)):
            for i, (a, b) in enumerate(zip(progress, expected, strict=True)):
                if abs(a - b) > TOLERANCE * abs(b):
                    raise AssertionError(
                        f"{name}, {model}, worker {rank} of {count}: variable {i} went {a}, "
                        f"with one worker {b}"
                    )


def measure(jobs: Jobs, model: str) -> dict[str, Any]:
    """A row of the table."""
    verify(jobs, model)
    seconds: dict[tuple[str, int], list[float]] = {which: [] for which in jobs}
    for _ in range(ROUNDS.value):
        for which, job in jobs.items():
            seconds[which].append(max(call(job, "fit", model, STEPS.value)))
    row: dict[str, Any] = {
        "model": model,
        "parameters": jobs["tfdist", 1][0].call("parameters", model),
    }
    for name in ("tfdist", "TensorFlow"):
        one, two = (statistics.median(seconds[name, count]) for count in WORKERS)
        row[name] = {"one": one, "two": two, "overhead": two - one}
    row["of_stock"] = row["tfdist"]["overhead"] / row["TensorFlow"]["overhead"]
    row["reached"] = row["of_stock"] <= GOAL
    return row


def show(rows: list[dict[str, Any]]) -> None:
    print(f"\ntraining steps with fit, {BATCH.value} examples a worker, milliseconds (median)\n")
    print(f"{'':>16} {'tfdist: 1':>10} {'2':>8} {'overhead':>9}", end="")
    print(f" | {'TensorFlow: 1':>13} {'2':>8} {'overhead':>9} | {'ours of theirs':>14}  goal")
    for row in rows:
        ours, theirs = (
            [1e3 * row[name][key] for key in ("one", "two", "overhead")]
            for name in ("tfdist", "TensorFlow")
        )
        print(
            f"{row['model']:>6} {row['parameters'] / 1e6:7.2f} M {ours[0]:10.2f} {ours[1]:8.2f} "
            f"{ours[2]:9.2f} | {theirs[0]:13.2f} {theirs[1]:8.2f} {theirs[2]:9.2f} "
            f"| {row['of_stock']:14.2f}  {GOAL:.2f} {'reached' if row['reached'] else 'missed'}"
        )


def draw(file: Path, rows: list[dict[str, Any]]) -> None:
    groups = {
        f"{row['model']}, {row['parameters'] / 1e6:.1f} M parameters": {
            name: 1e3 * row[name]["overhead"] for name in ("tfdist", "TensorFlow")
        }
        for row in rows
    }
    title = "Time that a second worker adds to a training step with fit"
    charts.bars(file, title, "milliseconds (median)", groups)


def main(argv: list[str]) -> None:
    del argv
    with contextlib.ExitStack() as stack:
        jobs = start_jobs(stack)
        rows = [measure(jobs, model) for model in MODELS]
    show(rows)
    figures = {"batch": BATCH.value, "rows": rows}
    results.save(JSON.value, figures, lambda file: draw(file, rows))


if __name__ == "__main__":
    # For the processes, which are forked from a process that has imported TensorFlow.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    app.run(main)
