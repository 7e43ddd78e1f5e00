"""Parameter servers on this machine: tfdist, TensorFlow's own and a bare socket, in one run.

    python benchmarks/parameter_server.py [--variables 100] [--megabytes 25] [--rounds 10]
                                          [--steps 10] [--json FILE]

Two jobs of two workers and one parameter server train the same dense float32 variables with SGD:
tfdist's, and the job of a stock `tf.distribute.ParameterServerStrategy`, whose `ClusterCoordinator`
is one more process. A step reads all variables and uses a fraction of each as its gradient, so that
the exchange dominates. Workers do not wait for each other.

    steps/s      of all workers of a job together, until the server has applied the last step
    ms per pull  of all variables, one worker alone
    ms per push  of gradients of all variables, one worker alone, until the server has applied them

The second table compares pulls of all variables, and of as many with a twenty-fifth of the size,
with a bare socket. That is a request of 64 bytes to a process that sends the same number of bytes
back, over loopback TCP, into existing memory. A push precedes each pull, because tfdist sends only
changes. Here clock ops measure the pull's op in its tf.function, without the function's call.

Results are verified before the timing. Implementations are timed in turn, round by round; the
tables show medians over the rounds.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import app, flags
from baselines.parameter_servers import (
    Model,
    StockCoordinator,
    StockServer,
    TfdistServer,
    TfdistWorker,
)
from baselines.processes import BareSocket, Remote
from reporting import charts, results

from tfdist.config.cluster import Cluster
from tfdist.launch.ports import free_ports

VARIABLES = flags.DEFINE_integer("variables", 100, "of the model", lower_bound=1)
MEGABYTES = flags.DEFINE_float("megabytes", 25, "of all variables together", lower_bound=0.01)
ROUNDS = flags.DEFINE_integer("rounds", 10, "counted rounds of each implementation", lower_bound=3)
STEPS = flags.DEFINE_integer("steps", 10, "of each worker in a round", lower_bound=1)
JSON = flags.DEFINE_string("json", None, "file to write the figures to; a chart beside it")

MB = 1 << 20
WORKERS = 2
EXCHANGES = 4  # pulls and pushes of all variables in a round
SMALL_EXCHANGES = 20

# The processes of a job that receive commands; the first one exchanges.
Job = list[Remote]
# Each figure, by its kind and implementation.
Figures = dict[tuple[str, str], float]


def start_tfdist(start: Callable[..., Remote], models: tuple[Model, Model]) -> Job:
    chief, *others, ps = (f"127.0.0.1:{port}" for port in free_ports(WORKERS + 1))
    tasks = {"chief": (chief,), "workers": tuple(others), "ps": (ps,)}

    def tf_config(task_type: str, index: int) -> str:
        return Cluster(**tasks, task_type=task_type, task_index=index).tf_config()

    start(TfdistServer, tf_config("ps", 0))
    return [
        start(TfdistWorker, tf_config("chief", 0), models),
        *(start(TfdistWorker, tf_config("worker", i), models) for i in range(len(others))),
    ]


def start_stock(start: Callable[..., Remote], model: Model) -> Job:
    *workers, ps = (f"127.0.0.1:{port}" for port in free_ports(WORKERS + 1))
    cluster = {"worker": workers, "ps": [ps]}
    for task_type, addresses in cluster.items():
        for index in range(len(addresses)):
            start(StockServer, cluster, task_type, index)
    return [start(StockCoordinator, cluster, model)]


def verify(jobs: dict[str, Job], bare: BareSocket, models: tuple[Model, Model]) -> None:
    """Raises unless sequential steps and pushes give the expected values."""
    steps, pushes = 4, 2
    for job in jobs.values():
        for i in range(steps):
            job[i % len(job)].call("steps", 1)
        for i in range(pushes):
            job[i % len(job)].call("exchange", 0, 1)
        for remote in job:
            remote.call("verify", 0, steps, pushes)
    ours = jobs["tfdist"][0]
    ours.call("exchange", 1, pushes)
    ours.call("verify", 1, 0, pushes)
    for model in models:
        bare.verify(model.bytes)


def steps_per_second(job: Job) -> float:
    steps = STEPS.value * WORKERS
    start = time.perf_counter()
    for remote in job:
        remote.begin("steps", steps // len(job))
    for remote in job:
        remote.end()
    return steps / (time.perf_counter() - start)


def measure(jobs: dict[str, Job], bare: BareSocket, models: tuple[Model, Model]) -> Figures:
    """Medians over the rounds."""
    rounds: dict[tuple[str, str], list[float]] = {}

    def note(implementation: str, **figures: float) -> None:
        for what, figure in figures.items():
            rounds.setdefault((what, implementation), []).append(figure)

    for _ in range(ROUNDS.value + 1):
        for name, job in jobs.items():
            note(name, steps=steps_per_second(job))
        for name, job in jobs.items():
            note(name, **job[0].call("exchange", 0, EXCHANGES))
        note("bare socket", pull_op=bare.pull(models[0].bytes, EXCHANGES))
        small = jobs["tfdist"][0].call("exchange", 1, SMALL_EXCHANGES)
        note("tfdist", small_pull_op=small["pull_op"])
        note("bare socket", small_pull_op=bare.pull(models[1].bytes, SMALL_EXCHANGES))
    return {key: statistics.median(figures[1:]) for key, figures in rounds.items()}


def compare(figures: Figures, models: tuple[Model, Model]) -> list[dict]:
    """The rows of both tables."""
    rows = []
    for case, what, peer, model in (
        ("steps/s", "steps", "stock", models[0]),
        ("ms per pull", "pull", "stock", models[0]),
        ("ms per push", "push", "stock", models[0]),
        ("ms per pull", "small_pull_op", "bare socket", models[1]),
        ("ms per pull", "pull_op", "bare socket", models[0]),
    ):
        scale = 1 if what == "steps" else 1e3
        ours, theirs = figures[what, "tfdist"] * scale, figures[what, peer] * scale
        # The first table has the speedup over stock, the second the slowdown from a bare socket.
        ratio = theirs / ours if peer == "stock" and what != "steps" else ours / theirs
        row = {"case": case, "peer": peer, "bytes": model.bytes}
        rows.append(row | {"theirs": theirs, "tfdist": ours, "ratio": ratio})
    return rows


def show(rows: list[dict]) -> None:
    print(
        f"\n{WORKERS} workers and 1 parameter server on one machine ({os.cpu_count()} processors), "
        f"{VARIABLES.value} float32 variables, medians"
    )
    for peer, ratio in (("stock", "faster"), ("bare socket", "slower")):
        print(f"\n{'':>22} {peer:>11} {'tfdist':>9} {ratio:>8}")
        for row in rows:
            if row["peer"] == peer:
                print(
                    f"{row['case']:>12} {row['bytes'] / MB:6.3g} MB {row['theirs']:11.2f} "
                    f"{row['tfdist']:9.2f} {row['ratio']:7.1f}x"
                )


def draw(file: Path, rows: list[dict]) -> None:
    groups: dict[str, dict[str, float]] = {}
    for row in rows:
        for name, value in ((row["peer"], row["theirs"]), ("tfdist", row["tfdist"])):
            case = f"{row['case'].removeprefix('ms per ')}, {row['bytes'] / MB:.3g} MB"
            if row["case"] == "steps/s":
                case, value = f"step, {row['bytes'] / MB:.3g} MB", 1e3 / value
            groups.setdefault(f"{case},\nbeside {row['peer']}", {})[name] = value
    title = f"{WORKERS} workers and 1 parameter server, {VARIABLES.value} variables"
    charts.bars(file, title, "milliseconds (median)", groups, log=True)


def main(argv: list[str]) -> None:
    del argv
    length = max(25, int(MEGABYTES.value * MB) // 4 // VARIABLES.value)
    models = (Model(VARIABLES.value, length), Model(VARIABLES.value, length // 25))
    with contextlib.ExitStack() as stack:

        def start(make: type, *arguments: Any) -> Remote:
            remote = Remote(make, *arguments)
            stack.callback(remote.stop)
            return remote

        bare = BareSocket(models[0].bytes)
        stack.callback(bare.stop)
        jobs = {"stock": start_stock(start, models[0]), "tfdist": start_tfdist(start, models)}
        verify(jobs, bare, models)
        rows = compare(measure(jobs, bare, models), models)
    show(rows)
    figures = {"workers": WORKERS, "rows": rows}
    results.save(JSON.value, figures, lambda file: draw(file, rows))


if __name__ == "__main__":
    # For the processes, which are forked from a process that has imported TensorFlow.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    app.run(main)
