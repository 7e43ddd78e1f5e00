"""Embedding tables on the workers and on parameter servers of this machine, in one run.

    python benchmarks/worker_tables.py [--workers 2] [--rows 1000000] [--width 64] [--ids 4096]
                                       [--features 26] [--batch 1024] [--rounds 10] [--steps 50]
                                       [--torch_python PYTHON] [--json FILE]

Synchronous jobs train the same tables with Adagrad, tfdist's with `MultiWorkerMirroredStrategy`:

    workers   the rows are dealt over the workers
    1 server  the rows are on one `ps` task, a further process
    TorchRec  TorchRec's fused Adagrad on CPU and Gloo, with one thread; it divides no rows on CPU:
              the columns of one table, or whole tables, are dealt over the workers. It needs an
              environment with torch, torchrec and fbgemm-gpu-cpu (`--torch_python`)

A step of a worker looks rows up, uses a fraction of each as its gradient and applies the sum of all
workers. The cases are the same as in embedding.py:

    uniform   one table of `--rows` x `--width`; `--ids` ids per step, equally frequent
    zipfian   `--features` tables of a tenth of the rows and a quarter of the width; `--batch` ids
              per step of each, few of them frequent

    steps/s   of each worker; all make a step together
    ids/s     of all workers, looked up and updated

The last table has the bytes that a worker of tfdist exchanges with other processes in a step, and
beside them the formula: for each distinct id an id and a row, and an id and a gradient. Tables on N
workers exchange (N - 1) / N of it.

Results are verified before the timing. Jobs are timed in turn, round by round; the tables show
medians over the rounds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import app, flags
from baselines.embeddings import SynchronousTfdistWorker, Workload
from baselines.parameter_servers import TfdistServer
from baselines.processes import Remote
from baselines.programs import FOLDER, Program
from reporting import charts, results

from tfdist.config.cluster import Cluster
from tfdist.launch.ports import free_ports

WORKERS = flags.DEFINE_integer("workers", 2, "of each job", lower_bound=2)
ROWS = flags.DEFINE_integer("rows", 1_000_000, "of the one table", lower_bound=10)
WIDTH = flags.DEFINE_integer("width", 64, "of its rows", lower_bound=4)
IDS = flags.DEFINE_integer("ids", 4096, "a step looks up there", lower_bound=1)
FEATURES = flags.DEFINE_integer("features", 26, "tables of the other case", lower_bound=1)
BATCH = flags.DEFINE_integer("batch", 1024, "ids a step looks up in each", lower_bound=1)
ROUNDS = flags.DEFINE_integer("rounds", 10, "counted rounds of each job", lower_bound=3)
STEPS = flags.DEFINE_integer("steps", 50, "of each worker in a round", lower_bound=1)
TORCH = flags.DEFINE_string("torch_python", None, "Python that has TorchRec")
JSON = flags.DEFINE_string("json", None, "file to write the figures to; a chart beside it")

KB = 1 << 10
SKEW = 1.1
VERIFIED_STEPS = 4

# The processes of a job that receive commands.
Job = list[Remote] | list[Program]


def workloads() -> tuple[Workload, ...]:
    rows, width = ROWS.value // 10, WIDTH.value // 4
    return (
        Workload("uniform", 1, ROWS.value, WIDTH.value, IDS.value),
        Workload("zipfian", FEATURES.value, rows, width, BATCH.value, SKEW),
    )


def start_job(start: Callable[..., Remote], cases: tuple[Workload, ...], servers: int) -> Job:
    addresses = [f"127.0.0.1:{port}" for port in free_ports(WORKERS.value + servers)]
    workers, ps = addresses[: WORKERS.value], addresses[WORKERS.value :]

    def tf_config(task_type: str, index: int) -> str:
        tasks = {"workers": tuple(workers), "ps": tuple(ps)}
        return Cluster(**tasks, task_type=task_type, task_index=index).tf_config()

    for index in range(servers):
        start(TfdistServer, tf_config("ps", index))
    job = [
        start(SynchronousTfdistWorker, tf_config("worker", index), cases)
        for index in range(WORKERS.value)
    ]
    job[0].call("fill")
    return job


def start_torchrec(stack: contextlib.ExitStack, cases: tuple[Workload, ...]) -> list[Program]:
    store = Path(stack.enter_context(tempfile.TemporaryDirectory()), "store")
    described = json.dumps([dataclasses.asdict(case) for case in cases])
    job = []
    for rank in range(WORKERS.value):
        words = (TORCH.value, FOLDER / "torchrec_rank.py", rank, WORKERS.value, store, described)
        job.append(Program(f"TorchRec rank {rank}", [str(word) for word in words]))
        stack.callback(job[-1].stop)
    for program in job:
        program.end()
    return job


def verify(job: Job, cases: tuple[Workload, ...]) -> None:
    """Raises unless the rows have the expected values after some steps."""
    for case in range(len(cases)):
        if isinstance(job[0], Remote):
            run(job, case, 0, VERIFIED_STEPS)
        for process in job:
            process.begin("verify", case, VERIFIED_STEPS)
        for process in job:
            process.end()


def run(job: Job, case: int, first: int, steps: int) -> tuple[float, list]:
    """Makes steps; returns the steps per second, and each worker's result."""
    count = len(job)
    start = time.perf_counter()
    for rank, process in enumerate(job):
        if isinstance(process, Program):
            process.begin("run", case, first, steps)
        else:
            drawn = range(first * count + rank, (first + steps) * count, count)
            process.begin("steps", case, drawn)
    found = [process.end() for process in job]
    return steps / (time.perf_counter() - start), found


def measure(jobs: dict[str, Job], cases: tuple[Workload, ...]) -> list[dict]:
    """A row of figures for each case, medians over the rounds."""
    rows = []
    for number, case in enumerate(cases):
        rates: dict[str, list[float]] = {name: [] for name in jobs}
        moved: dict[str, list[float]] = {name: [] for name in jobs}
        formula: list[float] = []
        for turn in range(ROUNDS.value + 1):
            for name, job in jobs.items():
                first = VERIFIED_STEPS + turn * STEPS.value
                rate, found = run(job, number, first, STEPS.value)
                rates[name].append(rate)
                if name == "TorchRec":
                    continue
                a_step = STEPS.value * len(job)
                moved[name].append(sum(of_one for of_one, _ in found) / a_step)
                distinct = sum(of_one for _, of_one in found) / a_step
            formula.append(distinct * (2 * 8 + 2 * 4 * case.width))
        rows.append(
            {
                "case": case.name,
                "ids": case.tables * case.ids * WORKERS.value,
                "formula_bytes": statistics.median(formula[1:]),
                "steps": {name: statistics.median(of_one[1:]) for name, of_one in rates.items()},
                "bytes": {
                    name: statistics.median(of_one[1:]) for name, of_one in moved.items() if of_one
                },
            }
        )
    return rows


def show(rows: list[dict], cases: tuple[Workload, ...]) -> None:
    print(
        f"\n{WORKERS.value} workers on one machine ({os.cpu_count()} processors), float32, "
        "Adagrad, synchronous, medians\n"
    )
    for case in cases:
        tables = f"{case.tables} table{'s' * (case.tables > 1)} of {case.rows} x {case.width}"
        print(f"{case.name:>8}: {tables}, {case.ids} ids a step of each, on each worker")
    names = list(rows[0]["steps"])
    ratios = [f"of {name}" for name in names[1:]]
    print(f"\n{'':>16} " + " ".join(f"{name:>11}" for name in [*names, *ratios]))
    for row in rows:
        ratio = " ".join(
            f"{row['steps']['workers'] / row['steps'][name]:10.2f}x" for name in names[1:]
        )
        for unit, scale, digits in (("steps/s", 1, 1), ("ids/s", row["ids"], 0)):
            figures = " ".join(f"{row['steps'][name] * scale:11.{digits}f}" for name in names)
            print(f"{row['case']:>8} {unit:>7} {figures} {ratio}")
    counted = list(rows[0]["bytes"])
    print(f"\n{'KB a step':>16} " + " ".join(f"{name:>11}" for name in [*counted, "formula"]))
    for row in rows:
        figures = [*(row["bytes"][name] for name in counted), row["formula_bytes"]]
        print(f"{row['case']:>16} " + " ".join(f"{figure / KB:11.1f}" for figure in figures))


def draw(file: Path, rows: list[dict]) -> None:
    groups = {
        row["case"]: {name: row["ids"] * rate for name, rate in row["steps"].items()}
        for row in rows
    }
    title = f"Ids looked up and updated, {WORKERS.value} workers, synchronous"
    charts.bars(file, title, "ids per second (median)", groups)


def main(argv: list[str]) -> None:
    del argv
    cases = workloads()
    with contextlib.ExitStack() as stack:

        def start(make: type, *arguments: Any) -> Remote:
            remote = Remote(make, *arguments)
            stack.callback(remote.stop)
            return remote

        jobs: dict[str, Job] = {
            "workers": start_job(start, cases, servers=0),
            "1 server": start_job(start, cases, servers=1),
        }
        if TORCH.value is not None:
            jobs["TorchRec"] = start_torchrec(stack, cases)
        for job in jobs.values():
            verify(job, cases)
        rows = measure(jobs, cases)
    show(rows, cases)
    figures = {"workers": WORKERS.value, "rows": rows}
    results.save(JSON.value, figures, lambda file: draw(file, rows))


if __name__ == "__main__":
    # For the processes, which are forked from a process that has imported TensorFlow.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    app.run(main)
