"""Remote embeddings on this machine: tfdist and TensorFlow's parameter servers, in one run.

    python benchmarks/embedding.py [--rows 1000000] [--width 64] [--ids 4096] [--features 26]
                                   [--batch 1024] [--rounds 10] [--steps 50] [--json FILE]

Jobs of two workers and one parameter server train the same tables with Adagrad: tfdist's, and the
tables of a stock `tf.distribute.ParameterServerStrategy`, whose `ClusterCoordinator` is one more
process. A step looks rows up, uses a fraction of each as its gradient and applies it. Workers do
not wait for each other. The stock job looks up with `tf.nn.embedding_lookup` and applies

    stock     with tf_keras's Adagrad, as a program for these parameter servers does
    by op     with `ResourceSparseApplyAdagrad`, after each worker has added up the gradients of
              equal ids: the least work of an optimizer

    uniform   one table of `--rows` x `--width`; `--ids` ids per step, equally frequent
    zipfian   `--features` tables of a tenth of the rows and a quarter of the width; `--batch` ids
              per step of each, few of them frequent

    steps/s   of all workers of a job together, until the server has applied the last step
    ids/s     looked up and updated in these steps

The last table has the bytes of rows and gradients in a step of tfdist's: the bytes of a row and a
gradient for each id, and the bytes sent, including the gradients' ids. Equal ids of a step share
one row and one gradient.

Results are verified before the timing. Implementations are timed in turn, round by round; the
tables show medians over the rounds.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from absl import app, flags
from baselines.embeddings import StockCoordinator, TfdistWorker, Workload
from baselines.parameter_servers import StockServer, TfdistServer
from baselines.processes import Remote
from reporting import charts, results

from tfdist.config.cluster import Cluster
from tfdist.launch.ports import free_ports

ROWS = flags.DEFINE_integer("rows", 1_000_000, "of the one table", lower_bound=10)
WIDTH = flags.DEFINE_integer("width", 64, "of its rows", lower_bound=4)
IDS = flags.DEFINE_integer("ids", 4096, "a step looks up there", lower_bound=1)
FEATURES = flags.DEFINE_integer("features", 26, "tables of the other case", lower_bound=1)
BATCH = flags.DEFINE_integer("batch", 1024, "ids a step looks up in each", lower_bound=1)
ROUNDS = flags.DEFINE_integer("rounds", 10, "counted rounds of each implementation", lower_bound=3)
STEPS = flags.DEFINE_integer("steps", 50, "of each worker in a round", lower_bound=1)
JSON = flags.DEFINE_string("json", None, "file to write the figures to; a chart beside it")

KB = 1 << 10
WORKERS = 2
SKEW = 1.1
VERIFIED_STEPS = 4

# The processes of a job that receive commands.
Job = list[Remote]


def workloads() -> tuple[Workload, ...]:
    rows, width = ROWS.value // 10, WIDTH.value // 4
    return (
        Workload("uniform", 1, ROWS.value, WIDTH.value, IDS.value),
        Workload("zipfian", FEATURES.value, rows, width, BATCH.value, SKEW),
    )


def start_tfdist(start: Callable[..., Remote], cases: tuple[Workload, ...]) -> Job:
    chief, *others, ps = (f"127.0.0.1:{port}" for port in free_ports(WORKERS + 1))
    tasks = {"chief": (chief,), "workers": tuple(others), "ps": (ps,)}

    def tf_config(task_type: str, index: int) -> str:
        return Cluster(**tasks, task_type=task_type, task_index=index).tf_config()

    start(TfdistServer, tf_config("ps", 0))
    job = [
        start(TfdistWorker, tf_config("chief", 0), cases),
        *(start(TfdistWorker, tf_config("worker", i), cases) for i in range(len(others))),
    ]
    job[0].call("fill")
    return job


def start_stock(start: Callable[..., Remote], cases: tuple[Workload, ...], by_op: bool) -> Job:
    *workers, ps = (f"127.0.0.1:{port}" for port in free_ports(WORKERS + 1))
    cluster = {"worker": workers, "ps": [ps]}
    for task_type, addresses in cluster.items():
        for index in range(len(addresses)):
            start(StockServer, cluster, task_type, index)
    return [start(StockCoordinator, cluster, cases, by_op)]


def verify(job: Job, cases: tuple[Workload, ...]) -> None:
    """Raises unless sequential steps give the expected values."""
    for case in range(len(cases)):
        for number in range(VERIFIED_STEPS):
            job[number % len(job)].call("steps", case, [number])
        for remote in job:
            remote.call("verify", case, VERIFIED_STEPS)


def run(job: Job, case: int, numbers: Iterator[int]) -> tuple[float, list]:
    """Steps per second, and each process's result."""
    steps = STEPS.value * WORKERS
    drawn = list(itertools.islice(numbers, steps))
    start = time.perf_counter()
    for i, remote in enumerate(job):
        remote.begin("steps", case, drawn[i :: len(job)])
    sent = [remote.end() for remote in job]
    return steps / (time.perf_counter() - start), sent


def measure(jobs: dict[str, Job], cases: tuple[Workload, ...]) -> list[dict]:
    """A row of figures for each case, medians over the rounds."""
    rows = []
    for number, case in enumerate(cases):
        numbers = {name: itertools.count(VERIFIED_STEPS) for name in jobs}
        rates: dict[str, list[float]] = {name: [] for name in jobs}
        sent = []
        for _ in range(ROUNDS.value + 1):
            for name, job in jobs.items():
                rate, sent_by = run(job, number, numbers[name])
                rates[name].append(rate)
                if name == "tfdist":
                    sent.append(sum(sent_by) / (STEPS.value * WORKERS))
        row = {"case": case.name, "ids": case.tables * case.ids}
        row |= {name: statistics.median(of_one[1:]) for name, of_one in rates.items()}
        moved = {"whole_bytes": case.whole_bytes, "sent_bytes": statistics.median(sent[1:])}
        rows.append(row | moved)
    return rows


def show(rows: list[dict], cases: tuple[Workload, ...]) -> None:
    print(
        f"\n{WORKERS} workers and 1 parameter server on one machine ({os.cpu_count()} processors), "
        "float32, Adagrad, medians\n"
    )
    for case in cases:
        tables = f"{case.tables} table{'s' * (case.tables > 1)} of {case.rows} x {case.width}"
        print(f"{case.name:>8}: {tables}, {case.ids} ids a step of each")
    print(f"\n{'':>16} {'stock':>10} {'by op':>10} {'tfdist':>10} {'faster':>7} {'by op':>7}")
    for row in rows:
        ratios = [row["tfdist"] / row[stock] for stock in ("stock", "by op")]
        for unit, scale, digits in (("steps/s", 1, 1), ("ids/s", row["ids"], 0)):
            rates = [row[name] * scale for name in ("stock", "by op", "tfdist")]
            print(
                f"{row['case']:>8} {unit:>7} "
                + " ".join(f"{rate:10.{digits}f}" for rate in rates)
                + "".join(f" {ratio:6.1f}x" for ratio in ratios)
            )
    print(f"\n{'':>16} {'KB with equals':>14} {'KB sent':>9} {'share':>7}")
    for row in rows:
        whole, sent = row["whole_bytes"], row["sent_bytes"]
        print(f"{row['case']:>8}  a step {whole / KB:14.1f} {sent / KB:9.1f} {sent / whole:7.1%}")


def draw(file: Path, rows: list[dict]) -> None:
    groups = {
        row["case"]: {name: row["ids"] * row[name] for name in ("stock", "by op", "tfdist")}
        for row in rows
    }
    title = f"Ids looked up and updated, {WORKERS} workers and 1 parameter server"
    charts.bars(file, title, "ids per second (median)", groups)


def main(argv: list[str]) -> None:
    del argv
    cases = workloads()
    with contextlib.ExitStack() as stack:

        def start(make: type, *arguments: Any) -> Remote:
            remote = Remote(make, *arguments)
            stack.callback(remote.stop)
            return remote

        jobs = {
            "stock": start_stock(start, cases, by_op=False),
            "by op": start_stock(start, cases, by_op=True),
            "tfdist": start_tfdist(start, cases),
        }
        for job in jobs.values():
            verify(job, cases)
        rows = measure(jobs, cases)
    show(rows, cases)
    figures = {"workers": WORKERS, "rows": rows}
    results.save(JSON.value, figures, lambda file: draw(file, rows))


if __name__ == "__main__":
    # For the processes, which are forked from a process that has imported TensorFlow.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    app.run(main)
