"""The cost of commits of data tasks' records by the pushes of steps.

    python benchmarks/task_pushes.py [--megabytes 0.1,1,10] [--rounds 15] [--steps 20] [--json FILE]

One worker and one parameter server on one machine; steps of Adam on one dense variable, whose two
slots change with it. In the first job the batches are of a plain dataset. In the second they are of
data tasks, so that each push names its records. In the third one the server has a checkpoint_dir:
it writes the variable and its slots to the log with every push. Rounds of the jobs alternate, in
another order each time, and the differences are medians over the rounds.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from pathlib import Path
from typing import Any

from absl import app, flags
from baselines.processes import Remote
from baselines.task_pushers import Server, Worker
from reporting import charts, results

from tfdist.config.cluster import Cluster
from tfdist.launch.ports import free_ports

MEGABYTES = flags.DEFINE_list("megabytes", ["0.1", "1", "10"], "sizes of the variable")
ROUNDS = flags.DEFINE_integer("rounds", 15, "of each job", lower_bound=1)
STEPS = flags.DEFINE_integer("steps", 20, "of a round", lower_bound=1)
JSON = flags.DEFINE_string("json", None, "file to write the figures to; a chart beside it")

PLAIN, TASKS, LOGGED = "plain dataset", "data tasks", "data tasks, logged"


def start(stack: contextlib.ExitStack, elements: int, of_tasks: bool, folder: str | None) -> Remote:
    """Starts a job; returns its worker."""
    chief, ps = (f"127.0.0.1:{port}" for port in free_ports(2))

    def tf_config(task_type: str) -> str:
        cluster = Cluster(chief=(chief,), ps=(ps,), task_type=task_type, task_index=0)
        return cluster.tf_config()

    server = Remote(Server, tf_config("ps"), folder)
    stack.callback(server.stop)
    worker = Remote(Worker, tf_config("chief"), folder, elements, of_tasks)
    stack.callback(worker.stop)
    return worker


def measure(megabytes: float) -> dict[str, Any]:
    """Times the three jobs, in turns."""
    elements = int(megabytes * 2**20 / 4)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        jobs = {
            PLAIN: start(stack, elements, False, None),
            TASKS: start(stack, elements, True, None),
            LOGGED: start(stack, elements, True, folder),
        }
        for worker in jobs.values():
            worker.call("steps", STEPS.value)
        rounds = []
        for i in range(ROUNDS.value):
            names = list(jobs)[i % 3 :] + list(jobs)[: i % 3]
            rounds.append({name: jobs[name].call("steps", STEPS.value) for name in names})
        if any(worker.call("refused") for worker in jobs.values()):
            raise AssertionError("expected no refused pushes")
    row: dict[str, Any] = {"megabytes": megabytes}
    for name in jobs:
        row[name] = statistics.median(times[name] for times in rounds)
    for name in (TASKS, LOGGED):
        row[f"{name}: difference"] = statistics.median(
            times[name] - times[PLAIN] for times in rounds
        )
    return row


def show(rows: list[dict[str, Any]]) -> None:
    print("\nA step of Adam on one dense variable, milliseconds\n")
    names = [PLAIN, TASKS, LOGGED]
    print(f"{'MB':>8}", *(f"{name:>20}" for name in names), f"{'tasks':>10} {'logged':>10}")
    for row in rows:
        differences = [1e3 * row[f"{name}: difference"] for name in (TASKS, LOGGED)]
        print(
            f"{row['megabytes']:8g}",
            *(f"{1e3 * row[name]:20.2f}" for name in names),
            *(f"{difference:+10.2f}" for difference in differences),
        )


def draw(file: Path, rows: list[dict[str, Any]]) -> None:
    groups = {
        f"{row['megabytes']:g} MB": {name: 1e3 * row[name] for name in (PLAIN, TASKS, LOGGED)}
        for row in rows
    }
    charts.bars(file, "A step with one dense variable", "milliseconds", groups, log=True)


def main(argv: list[str]) -> None:
    del argv
    rows = [measure(float(megabytes)) for megabytes in MEGABYTES.value]
    show(rows)
    results.save(JSON.value, {"rows": rows}, lambda file: draw(file, rows))


if __name__ == "__main__":
    app.run(main)
