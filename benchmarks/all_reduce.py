"""All-reduce between processes of this machine: tfdist and its baselines, in one run.

    python benchmarks/all_reduce.py [--workers 2] [--rounds 15] [--max_megabytes 64] [--json FILE]

Every implementation has a process for each rank; all reduce the same float32 tensors:

    tfdist      `tfdist.ops.all_reduce` inside a `tf.function`
    TensorFlow  a stock `tf.distribute.MultiWorkerMirroredStrategy` (RING over gRPC), the same way
    Gloo        PyTorch's bare `torch.distributed.all_reduce`, in place, without TensorFlow around
                it; needs an environment with PyTorch (`--torch_python`), which scripts/bench makes
    bare ring   baselines/bare_ring.cc, only a ring over loopback TCP, in place
    no-op       an op with the same inputs and outputs inside a `tf.function` that returns its
                inputs: the time without communication

"In a row" is a function that reduces, then reduces the result, and so on, as a training step with
several buckets does: calling a function once takes TensorFlow longer than a small reduction.

Each result is verified before it is timed. Implementations are timed in turn, round by round, so
that a drift of the machine's speed affects all. A round is one warm-up call and several timed
calls. The table shows medians over the rounds, of the slowest rank in each, and the speedup of
tfdist; with two workers also the goal and whether it was reached.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import app, flags
from baselines import programs
from baselines.all_reducers import NoOpRank, StockRank, TfdistRank
from baselines.processes import Remote, call
from reporting import charts, results

from tfdist.config.cluster import Cluster
from tfdist.launch.ports import free_ports

ROOT = Path(__file__).resolve().parents[1]
WORKERS = flags.DEFINE_integer("workers", 2, "processes of each implementation", lower_bound=2)
ROUNDS = flags.DEFINE_integer("rounds", 15, "counted rounds of each implementation", lower_bound=3)
MAX_MEGABYTES = flags.DEFINE_float(
    "max_megabytes", 64, "megabytes of the largest tensor", lower_bound=0.004
)
TORCH = flags.DEFINE_string(
    "torch_python", str(ROOT / ".venv-torch/bin/python"), "Python that has PyTorch"
)
JSON = flags.DEFINE_string("json", None, "file to write the figures to; a chart beside it")

KB, MB = 1 << 10, 1 << 20


@dataclasses.dataclass(frozen=True)
class Case:
    """`tensors` tensors of `size` bytes each, reduced `in_a_row` times in one TensorFlow call."""

    name: str
    tensors: int
    size: int
    calls: int  # in a round
    in_a_row: int = 1


CASES = [
    Case("4 KB", 1, 4 * KB, 200),
    Case("10 x 4 KB, in a row", 1, 4 * KB, 20, in_a_row=10),
    Case("64 KB", 1, 64 * KB, 200),
    Case("1 MB", 1, MB, 20),
    Case("16 MB", 1, 16 * MB, 4),
    Case("64 MB", 1, 64 * MB, 2),
    Case("100 x 4 KB", 100, 4 * KB, 100),
]
OURS, STOCK, GLOO, BARE, NO_OP = "tfdist", "TensorFlow", "Gloo", "bare ring", "no-op"
# Minimum speedup of tfdist between two workers of a machine.
GOALS = {
    ("4 KB", STOCK): 8,
    ("4 KB", GLOO): 2,
    ("1 MB", STOCK): 6,
    ("1 MB", GLOO): 1.5,
    ("16 MB", STOCK): 4,
    ("16 MB", GLOO): 1,
    ("64 MB", STOCK): 6,
    ("64 MB", GLOO): 1.2,
    ("64 MB", BARE): 0.75,
    ("100 x 4 KB", STOCK): 4,
}
# Maximum seconds beyond the no-op.
ADDED = {"100 x 4 KB": 1e-3}

# The processes of an implementation, in rank order.
Ranks = list[Remote | programs.Program]


def start_implementations(stack: contextlib.ExitStack) -> tuple[dict[str, Ranks], str]:
    """Starts all processes; also returns the PyTorch version, or why Gloo cannot run."""
    size = WORKERS.value
    folder = stack.enter_context(tempfile.TemporaryDirectory())

    def start(make: Callable[..., Any], *arguments: Any) -> Any:
        started = make(*arguments)
        stack.callback(started.stop)
        return started

    addresses = [f"127.0.0.1:{port}" for port in free_ports(2 * size)]
    ours, stock = tuple(addresses[:size]), addresses[size:]
    implementations: dict[str, Ranks] = {OURS: [], STOCK: [], NO_OP: []}
    for rank in range(size):
        tf_config = Cluster(workers=ours, task_index=rank).tf_config()
        implementations[OURS].append(start(Remote, TfdistRank, rank, size, tf_config))
        implementations[STOCK].append(start(Remote, StockRank, rank, size, stock))
        implementations[NO_OP].append(start(Remote, NoOpRank, rank, size))
    torch = programs.why_no_torch(TORCH.value)
    if torch is None:
        implementations[GLOO] = programs.start_gloo(TORCH.value, size, folder)
        for program in implementations[GLOO]:
            stack.callback(program.stop)
        torch = [program.end() for program in implementations[GLOO]][0].removeprefix("ready ")
    bare_ring = programs.build_bare_ring(folder)
    implementations[BARE] = [
        start(programs.Program, f"bare ring {rank}", [bare_ring, f"{rank}", f"{size}", "127.0.0.1"])
        for rank in range(size)
    ]
    programs.connect_ring(implementations[BARE], ["127.0.0.1"] * size)
    return implementations, torch


def measure(implementations: dict[str, Ranks], case: Case) -> dict[str, float]:
    """Median seconds per reduction of each implementation, timed in turn."""
    row = {name: ("exact", case.in_a_row) for name in (OURS, STOCK, NO_OP)}
    for name, ranks in implementations.items():
        call(ranks, "verify", case.tensors, case.size, *row.get(name, ()))
    seconds: dict[str, list[float]] = {name: [] for name in implementations}
    for _ in range(ROUNDS.value + 1):
        for name, ranks in implementations.items():
            times = call(ranks, "run", case.tensors, case.size, case.calls, *row.get(name, ()))
            seconds[name].append(max(map(float, times)))
    return {name: statistics.median(times[1:]) for name, times in seconds.items()}


def row_of(case: Case, seconds: dict[str, float]) -> dict[str, Any]:
    """The figures of a case: seconds, ratios, goals."""
    ours = seconds[OURS]
    ratios = {peer: seconds[peer] / ours for peer in (STOCK, GLOO, BARE) if peer in seconds}
    added = ours - seconds[NO_OP]
    goals: dict[str, float] = {}
    missed = []
    if WORKERS.value == 2:
        goals = {
            peer: goal for (of, peer), goal in GOALS.items() if of == case.name and peer in ratios
        }
        missed = [peer for peer, goal in goals.items() if ratios[peer] < goal]
        if case.name in ADDED:
            goals[NO_OP] = ADDED[case.name]
            missed += [NO_OP] * (added > ADDED[case.name])
    return {
        "case": case.name,
        "tensors": case.tensors,
        "in_a_row": case.in_a_row,
        "bytes": case.tensors * case.size,
        "seconds": seconds,
        "ratios": ratios,
        "added": added,
        "goals": goals,
        "missed": missed,
    }


def show(rows: list[dict[str, Any]], torch: str) -> None:
    print(f"\n{WORKERS.value} workers on one machine, float32, milliseconds per reduction (median)")
    print("x: speedup of tfdist; [goal]; no-op: milliseconds that tfdist adds")
    print(f"PyTorch: {torch}\n")
    print(f"{'':>20} {OURS:>9}", end="")
    for peer in (STOCK, GLOO, BARE, NO_OP):
        print(f" |{peer:>11}{'':14}", end="")
    print(" | goals")
    for row in rows:
        print(f"{row['case']:>20} {row['seconds'][OURS] * 1e3:9.3f}", end="")
        for peer in (STOCK, GLOO, BARE):
            print(f" | {_cell(row, peer, row['ratios'].get(peer), 'x', 1)}", end="")
        print(f" | {_cell(row, NO_OP, row['added'], '', 1e3)}", end="")
        reached = "missed: " + ", ".join(row["missed"]) if row["missed"] else "reached"
        print(f" | {reached if row['goals'] else ''}".rstrip())


def _cell(row: dict[str, Any], peer: str, value: float | None, unit: str, scale: float) -> str:
    """Milliseconds of the peer, its comparison with tfdist, and the goal."""
    if value is None:
        return f"{'-':>10}{'':14}"
    goal = row["goals"].get(peer)
    shown = "" if goal is None else f"[{goal * scale:g}]"
    digits = 2 if peer in (BARE, NO_OP) else 1
    text = f"{value * scale:.{digits}f}{unit}"
    return f"{row['seconds'][peer] * 1e3:10.3f} {text:>6} {shown:<6}"


def draw(file: Path, rows: list[dict[str, Any]]) -> None:
    single = [row for row in rows if row["tensors"] == row["in_a_row"] == 1]
    notes = [
        f"{row['case']}: "
        + ", ".join(f"{name} {value * 1e3:.2f} ms" for name, value in row["seconds"].items())
        for row in rows
        if row not in single
    ]
    charts.lines(
        file,
        f"All-reduce between {WORKERS.value} processes of one machine, float32",
        "size of the tensor",
        "milliseconds (median)",
        {row["bytes"]: row["case"] for row in single},
        {
            name: [(row["bytes"], row["seconds"][name] * 1e3) for row in single]
            for name in (OURS, STOCK, GLOO, BARE, NO_OP)
            if name in single[0]["seconds"]
        },
        note="\n".join(notes),
    )


def main(argv: list[str]) -> None:
    del argv
    with contextlib.ExitStack() as stack:
        implementations, torch = start_implementations(stack)
        cases = [case for case in CASES if case.size <= MAX_MEGABYTES.value * MB]
        rows = [row_of(case, measure(implementations, case)) for case in cases]
    show(rows, torch)
    figures = {"workers": WORKERS.value, "rounds": ROUNDS.value, "torch": torch, "rows": rows}
    results.save(JSON.value, figures, lambda file: draw(file, rows))


if __name__ == "__main__":
    # For the processes, which are forked from a process that has imported TensorFlow.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    app.run(main)
