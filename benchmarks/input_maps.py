"""The time of an epoch whose input is slow: `shuffle`, a sleeping `map`, `batch`, `prefetch`.

    python benchmarks/input_maps.py [--rows 800] [--seconds 0.004] [--workers 2,4] [--json FILE]

    Keras                  one process without a strategy
    tfdist, N              N workers of a `tfdist.MultiWorkerMirroredStrategy`; each maps its rows
    whole batches, N       the same with a pipeline that cannot be divided: each maps all rows

The map sleeps, so that the workers of one machine do not compete for its processors. All must reach
the same weights. Implementations are timed in turn, round by round; the table has the median over
the epochs of all rounds, of the slowest worker.
"""

from __future__ import annotations

import contextlib
import os
import statistics
from pathlib import Path

from absl import app, flags
from baselines.input_fits import MappedFitter
from baselines.processes import Remote, call
from reporting import charts, results

from tfdist.config.cluster import Cluster
from tfdist.launch.ports import free_ports

ROWS = flags.DEFINE_integer("rows", 800, "of an epoch", lower_bound=1)
SECONDS = flags.DEFINE_float("seconds", 0.004, "that the map takes for a row", lower_bound=0.0)
EPOCHS = flags.DEFINE_integer("epochs", 3, "of a fit", lower_bound=1)
ROUNDS = flags.DEFINE_integer("rounds", 3, "fits of each implementation", lower_bound=1)
WORKERS = flags.DEFINE_list("workers", ["2", "4"], "numbers of workers")
JSON = flags.DEFINE_string("json", None, "file to write the figures to; a chart beside it")

PLAIN = "Keras"
GOALS = {2: 1.9, 4: 3.6}  # times as fast as one process
TOLERANCE = 1e-6


def start_job(stack: contextlib.ExitStack, workers: int, is_cut: bool) -> list[Remote]:
    addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(workers))
    configs = [Cluster(workers=addresses, task_index=rank).tf_config() for rank in range(workers)]
    job = [Remote(MappedFitter, config, ROWS.value, SECONDS.value, is_cut) for config in configs]
    for remote in job:
        stack.callback(remote.stop)
    return job


def verify(jobs: dict[str, list[Remote]]) -> None:
    """Raises unless all have the same weights."""
    for job in jobs.values():
        call(job, "fit", 1)
    (expected,) = call(jobs[PLAIN], "weights")
    for name, job in jobs.items():
        for weights in call(job, "weights"):
            difference = max(abs(a - b) for a, b in zip(weights, expected, strict=True))
            if difference > TOLERANCE:
                raise AssertionError(f"{name}: its weights are {difference} from one process's")


def measure(jobs: dict[str, list[Remote]]) -> dict[str, float]:
    """The median seconds of an epoch of each implementation."""
    epochs: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(ROUNDS.value):
        for name, job in jobs.items():
            epochs[name] += map(max, *call(job, "fit", EPOCHS.value), [0.0] * EPOCHS.value)
    return {name: statistics.median(of_one) for name, of_one in epochs.items()}


def show(epochs: dict[str, float]) -> None:
    print(f"\n{ROWS.value} rows, {SECONDS.value * 1e3:g} ms each, in batches of 32\n")
    print(f"{'':>18} {'seconds':>9} {'faster':>8}")
    for name, seconds in epochs.items():
        print(f"{name:>18} {seconds:9.2f} {epochs[PLAIN] / seconds:7.2f}x")
    for workers, goal in GOALS.items():
        seconds = epochs.get(f"tfdist, {workers}")
        if seconds is not None:
            outcome = "reached" if epochs[PLAIN] / seconds >= goal else "missed"
            print(f"  {workers} workers: goal {goal:g}x {outcome}")


def draw(file: Path, epochs: dict[str, float]) -> None:
    charts.bars(file, "An epoch with a slow map", "seconds", {"epoch": epochs})


def main(argv: list[str]) -> None:
    del argv
    with contextlib.ExitStack() as stack:
        plain = Remote(MappedFitter, "{}", ROWS.value, SECONDS.value, True)
        stack.callback(plain.stop)
        jobs = {PLAIN: [plain]}
        for workers in map(int, WORKERS.value):
            jobs[f"tfdist, {workers}"] = start_job(stack, workers, True)
            jobs[f"whole batches, {workers}"] = start_job(stack, workers, False)
        verify(jobs)
        epochs = measure(jobs)
    show(epochs)
    results.save(JSON.value, {"epochs": epochs}, lambda file: draw(file, epochs))


if __name__ == "__main__":
    # For the processes, which are forked from a process that has imported TensorFlow.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    app.run(main)
