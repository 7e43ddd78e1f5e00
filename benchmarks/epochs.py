"""The cost of an epoch of `fit` besides its steps: tiny epochs, with and without a strategy.

    python benchmarks/epochs.py [--epochs 60] [--rounds 3] [--busy 6] [--json FILE]

Keras 3 fits a small model on arrays, two batches an epoch:

    Keras            one process without a strategy
    Keras, twice     two such processes at the same time, which share the machine and nothing else
    tfdist           two workers of a `tfdist.MultiWorkerMirroredStrategy`
    devices, stock   one process with two devices, TensorFlow's `MirroredStrategy`
    devices, tfdist  the same with `tfdist.MirroredStrategy`

First on the machine as it is, then beside `--busy` processes that compute all the time.
Implementations are timed in turn, round by round; the table has the median and the maximum over the
epochs of all rounds, of the slower worker. Before the timing all must reach the same weights.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import statistics
from pathlib import Path
from typing import Any

from absl import app, flags
from baselines.epoch_fits import Fitter
from baselines.processes import Remote, call
from reporting import charts, results

from tfdist.config.cluster import Cluster
from tfdist.launch.ports import free_ports

EPOCHS = flags.DEFINE_integer("epochs", 60, "of a fit", lower_bound=2)
ROUNDS = flags.DEFINE_integer("rounds", 3, "fits of each implementation", lower_bound=1)
BUSY = flags.DEFINE_integer("busy", 6, "processes that compute all the time", lower_bound=0)
JSON = flags.DEFINE_string("json", None, "file to write the figures to; a chart beside it")

PLAIN, TWICE, OURS = "Keras", "Keras, twice", "tfdist"
STOCK, DEVICES = "devices, stock", "devices, tfdist"
# Two jobs whose median epochs are compared, and the maximum ratio.
GOALS = ((OURS, PLAIN, 1.5), (OURS, TWICE, 1.5), (DEVICES, STOCK, 1.0))
TOLERANCE = 1e-5

Jobs = dict[str, list[Remote]]


def start_jobs(stack: contextlib.ExitStack) -> Jobs:
    addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(2))
    configs = [Cluster(workers=addresses, task_index=rank).tf_config() for rank in range(2)]
    jobs = {
        PLAIN: [Remote(Fitter, "plain")],
        TWICE: [Remote(Fitter, "plain") for _ in range(2)],
        OURS: [Remote(Fitter, "worker", tf_config) for tf_config in configs],
        STOCK: [Remote(Fitter, "stock devices")],
        DEVICES: [Remote(Fitter, "devices")],
    }
    for job in jobs.values():
        for remote in job:
            stack.callback(remote.stop)
    return jobs


def verify(jobs: Jobs) -> None:
    """Raises unless all have the same weights."""
    for job in jobs.values():
        call(job, "fit", 2)
    (expected,) = call(jobs[PLAIN], "weights")
    for name, job in jobs.items():
        for weights in call(job, "weights"):
            difference = max(abs(a - b) for a, b in zip(weights, expected, strict=True))
            if difference > TOLERANCE:
                raise AssertionError(f"{name}: its weights are {difference} from one process's")


def measure(jobs: Jobs) -> dict[str, dict[str, float]]:
    """Seconds of an epoch of each implementation: the median, and the maximum."""
    epochs: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(ROUNDS.value):
        for name, job in jobs.items():
            epochs[name] += map(max, *call(job, "fit", EPOCHS.value), [0.0] * EPOCHS.value)
    return {
        name: {"median": statistics.median(of_one), "maximum": max(of_one)}
        for name, of_one in epochs.items()
    }


def show(rows: list[dict[str, Any]]) -> None:
    print(f"\n{ROUNDS.value} x {EPOCHS.value} epochs of two steps, milliseconds\n")
    print(f"{'':>22} {'median':>9} {'maximum':>9}")
    for row in rows:
        print("idle" if row["busy"] == 0 else f"beside {row['busy']} busy loops")
        for name, found in row["epochs"].items():
            print(f"{name:>22} {found['median'] * 1e3:9.1f} {found['maximum'] * 1e3:9.1f}")
        for name, peer, goal in GOALS:
            ratio = row["epochs"][name]["median"] / row["epochs"][peer]["median"]
            outcome = "reached" if ratio <= goal else "missed"
            print(f"  {name} of {peer}: {ratio:.2f}x, goal {goal:g} {outcome}")


def draw(file: Path, rows: list[dict[str, Any]]) -> None:
    groups = {
        f"{'idle' if row['busy'] == 0 else 'busy'}, {what}": {
            name: found[what] * 1e3 for name, found in row["epochs"].items()
        }
        for row in rows
        for what in ("median", "maximum")
    }
    charts.bars(file, "An epoch of two steps of fit", "milliseconds", groups, log=True)


def compute() -> None:
    while True:
        pass


def main(argv: list[str]) -> None:
    del argv
    rows = []
    with contextlib.ExitStack() as stack:
        jobs = start_jobs(stack)
        verify(jobs)
        rows.append({"busy": 0, "epochs": measure(jobs)})
        if BUSY.value:
            for _ in range(BUSY.value):
                process = multiprocessing.get_context("spawn").Process(target=compute, daemon=True)
                process.start()
                stack.callback(process.kill)
            rows.append({"busy": BUSY.value, "epochs": measure(jobs)})
    show(rows)
    results.save(JSON.value, {"rows": rows}, lambda file: draw(file, rows))


if __name__ == "__main__":
    # For the processes, which are forked from a process that has imported TensorFlow.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    app.run(main)
