"""Memory and time of a step with a divided optimizer: tfdist and PyTorch, in one run.

    python benchmarks/sharding.py [--workers 2,4] [--width 1024] [--layers 12] [--batch 64]
                                  [--rounds 5] [--steps 12] [--torch PYTHON] [--json FILE]

Workers on one machine train a dense network with Adam:

    copies      `tfdist.MultiWorkerMirroredStrategy`
    stage 1     the same with `tfdist.Sharding(stage=1)`
    stage 3     the same with `tfdist.Sharding(stage=3)`
    DDP         PyTorch's DistributedDataParallel over Gloo
    ZeRO        DDP with ZeroRedundancyOptimizer
    FSDP2       fully_shard, each layer a unit

Every worker has its own processor if the machine has enough. Implementations are timed in turn,
round by round; a round counts as the median of its steps, of the slowest worker, and the table has
medians over the rounds. Memory is resident memory without freed pages, above a small model's, which
was trained before: the largest of all workers. All processes use jemalloc if it is installed
(Debian's libjemalloc2), and return freed memory at once: with glibc's malloc the threads' heaps
hold several times as much. Sharded workers must reach the weights of copies.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from absl import app, flags
from baselines.processes import Remote, call
from baselines.programs import FOLDER, Program, why_no_torch
from baselines.sharded_fits import SKIPPED, ShardedWorker
from reporting import charts, results

from tfdist.config.cluster import Cluster
from tfdist.launch.ports import free_ports

WORKERS = flags.DEFINE_list("workers", ["2", "4"], "numbers of workers")
WIDTH = flags.DEFINE_integer("width", 1024, "of the layers", lower_bound=1)
LAYERS = flags.DEFINE_integer("layers", 12, "their number", lower_bound=1)
BATCH = flags.DEFINE_integer("batch", 64, "examples of each worker in a step", lower_bound=1)
ROUNDS = flags.DEFINE_integer("rounds", 5, "counted rounds of each implementation", lower_bound=1)
STEPS = flags.DEFINE_integer("steps", 12, "of a round", lower_bound=SKIPPED + 2)
JSON = flags.DEFINE_string("json", None, "file to write the figures to; a chart beside it")
TORCH = flags.DEFINE_string(
    "torch",
    str(Path(__file__).resolve().parents[1] / ".venv-torch/bin/python"),
    "a Python with PyTorch; its rows are missing without",
)

OURS = {"copies": 0, "stage 1": 1, "stage 3": 3}
THEIRS = {"DDP": "copies", "ZeRO": "optimizer", "FSDP2": "full"}
GOALS = {2: 1.10, 4: 1.0}  # of the time of copies, by the number of workers
FLOAT_BYTES = 4
ADAM_SLOTS = 2
SAVED = 0.9  # of the slots that a worker does not have, at least
TOLERANCE = 1e-5  # relative

JEMALLOC = f"/usr/lib/{os.uname().machine}-linux-gnu/libjemalloc.so.2"

Jobs = dict[str, list[Any]]


def start(stack: contextlib.ExitStack, count: int, folder: str) -> Jobs:
    shape = (WIDTH.value, LAYERS.value, BATCH.value)
    jobs: Jobs = {}
    for name, stage in OURS.items():
        addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(count))
        jobs[name] = []
        for rank in range(count):
            tf_config = Cluster(workers=addresses, task_index=rank).tf_config()
            jobs[name].append(Remote(ShardedWorker, rank, tf_config, stage, *shape))
            stack.callback(jobs[name][-1].stop)
    reason = why_no_torch(TORCH.value)
    if reason is not None:
        print(f"PyTorch: {reason}")
        return jobs
    for name, kind in THEIRS.items():
        jobs[name] = []
        store = Path(folder) / f"{kind}-{count}"
        for rank in range(count):
            arguments = [str(word) for word in (rank, count, store, kind, *shape)]
            command = [TORCH.value, str(FOLDER / "torch_sharded.py"), *arguments]
            jobs[name].append(Program(f"{name} {rank}", command))
            stack.callback(jobs[name][-1].stop)
    return jobs


def numbers(answer: Any) -> list[float]:
    """The numbers in the line of a program, or of a process."""
    if isinstance(answer, str):
        return [float(word) for word in answer.split()]
    return answer if isinstance(answer, list) else [answer]


def verify(jobs: Jobs) -> None:
    """Raises unless sharded workers reach the weights of copies."""
    totals = {name: call(jobs[name], "total") for name in OURS}
    expected = totals["copies"][0]
    for name, of_ranks in totals.items():
        for rank, total in enumerate(of_ranks):
            if abs(total - expected) > TOLERANCE * expected:
                raise AssertionError(f"{name}, rank {rank}: weights {total}, of copies {expected}")


def measure(count: int, folder: str) -> list[dict[str, Any]]:
    """The rows of the table for a number of workers."""
    with contextlib.ExitStack() as stack:
        jobs = start(stack, count, folder)
        seconds: dict[str, list[float]] = {name: [] for name in jobs}
        for number in range(1 + ROUNDS.value):
            for name, job in jobs.items():
                took = max(map(numbers, call(job, "fit", STEPS.value)))[0]
                if number:  # the first traces
                    seconds[name].append(took)
        verify(jobs)
        rows = []
        for name, job in jobs.items():
            held = [numbers(answer) for answer in call(job, "memory")]
            row = {"workers": count, "name": name, "seconds": statistics.median(seconds[name])}
            row |= {"peak": max(h[0] for h in held), "between": max(h[1] for h in held)}
            if name in OURS:
                row["sent"] = max(call(job, "sent", STEPS.value))
            rows.append(row)
    copies = {"copies": rows[0], "DDP": rows[len(OURS)] if len(rows) > len(OURS) else None}
    for row in rows:
        base = copies["copies" if row["name"] in OURS else "DDP"]
        row["of_copies"] = row["seconds"] / base["seconds"]
        row["saved"] = base["peak"] - row["peak"]
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    parameters = LAYERS.value * (WIDTH.value + 1) * WIDTH.value
    slots = ADAM_SLOTS * FLOAT_BYTES * parameters
    print(f"\n{parameters / 1e6:.1f} M parameters, Adam, {BATCH.value} examples a worker\n")
    heads = ("ms a step", "of copies", "peak MB", "between", "saved", "MB sent")
    print(f"{'workers':>7} {'':>8} " + " ".join(f"{head:>9}" for head in heads) + "  goals")
    for row in rows:
        count = row["workers"]
        peak, between, saved = (row[key] / 1e6 for key in ("peak", "between", "saved"))
        print(f"{count:7} {row['name']:>8} {1e3 * row['seconds']:9.1f}", end="")
        print(f" {row['of_copies']:9.2f} {peak:9.1f} {between:9.1f} {saved:9.1f}", end="")
        print(f" {row['sent'] / 1e6:9.2f}" if "sent" in row else f" {'':>9}", end="")
        if row["name"] == "stage 1":
            least = SAVED * (1 - 1 / count) * slots
            goals = [f"saves {least / 1e6:.1f}: {outcome(row['saved'] >= least)}"]
            if count in GOALS:
                reached = row["of_copies"] <= GOALS[count]
                goals.append(f"time {GOALS[count]:.2f}: {outcome(reached)}")
            print("  " + ", ".join(goals), end="")
        print()


def outcome(reached: bool) -> str:
    """A goal's outcome in a word."""
    return "reached" if reached else "missed"


def draw(file: Path, rows: list[dict[str, Any]]) -> None:
    groups: dict[str, dict[str, float]] = {}
    for row in rows:
        groups.setdefault(f"{row['workers']} workers", {})[row["name"]] = row["peak"] / 1e6
    charts.bars(file, "Peak memory of training above a small model's", "MB", groups)


def main(argv: list[str]) -> None:
    del argv
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for count in WORKERS.value for row in measure(int(count), folder)]
    show(rows)
    figures = {"width": WIDTH.value, "layers": LAYERS.value, "batch": BATCH.value, "rows": rows}
    results.save(JSON.value, figures, lambda file: draw(file, rows))


def use_jemalloc() -> None:
    """Starts this program again with jemalloc, which its processes inherit."""
    if not Path(JEMALLOC).exists():
        print(f"without jemalloc: expected {JEMALLOC}")
    elif "LD_PRELOAD" not in os.environ:
        os.environ |= {"LD_PRELOAD": JEMALLOC, "MALLOC_CONF": "dirty_decay_ms:0,muzzy_decay_ms:0"}
        os.execv(sys.executable, [sys.executable, *sys.argv])


if __name__ == "__main__":
    use_jemalloc()
    # For the processes, which are forked from a process that has imported TensorFlow.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    app.run(main)
