"""The time that serving metrics adds to a step of `fit` while nothing asks for them.

    python benchmarks/idle_metrics.py [--rounds 101] [--steps 200] [--batch 16] [--json FILE]

`tfdist run` lets all tasks of a machine serve their metrics. Two jobs of two workers each train the
same dense network with Keras 3 under `tfdist.MultiWorkerMirroredStrategy`, in turns: one without
metrics and one with. The network is small: the added time does not depend on its size, and is the
largest share of a short step. Every worker of a job has its own processor if the machine has
enough. A round is a `fit` and counts as the fastest decile of its steps, of the slower worker:
other programs make steps longer, never shorter. The two jobs take turns to be the first of a pair;
the table shows medians over the rounds, and the median and the quartiles of the differences of the
pairs.

Before the timing both jobs are verified: the job with metrics counts every step and its rows, and
the other one serves nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import statistics
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import app, flags
from baselines.fit_workers import SKIPPED, TfdistWorker
from baselines.processes import Remote, call
from reporting import charts, results

from tfdist.config.cluster import Cluster
from tfdist.launch.ports import free_ports, free_range

ROUNDS = flags.DEFINE_integer("rounds", 101, "pairs of rounds", lower_bound=2)
STEPS = flags.DEFINE_integer("steps", 200, "of a round", lower_bound=SKIPPED + 2)
BATCH = flags.DEFINE_integer("batch", 16, "examples of each worker in a step", lower_bound=1)
JSON = flags.DEFINE_string("json", None, "file to write the figures to; a chart beside it")

MODEL = "dense"
SCALE = 0.02  # of the models' widths
WORKERS = 2
GOAL = 0.02  # of a step
TIMEOUT = 10.0


class WorkerWithVariables(TfdistWorker):
    """A worker with variables of its own.

    Args:
      variables: of its environment.
      *arguments: of `TfdistWorker`.
    """

    def __init__(self, variables: dict[str, str], *arguments: Any) -> None:
        os.environ.update(variables)
        super().__init__(*arguments)

    @staticmethod
    def summary(seconds: Sequence[float]) -> float:
        """The fastest decile."""
        return statistics.quantiles(seconds, n=10)[0]

    def serves_metrics(self) -> bool:
        """Whether it serves them."""
        from tfdist.job import process

        return process.current.serves_metrics


class Job:
    """Two workers, which serve metrics or do not.

    Args:
      stack: ends them.
      port: of the first worker's metrics; `None` without metrics.
    """

    def __init__(self, stack: contextlib.ExitStack, port: int | None) -> None:
        variables = {} if port is None else {"TFDIST_METRICS_PORT": str(port)}
        self._port = port
        addresses = tuple(f"127.0.0.1:{one}" for one in free_ports(WORKERS))
        self._workers = []
        for rank in range(WORKERS):
            config = Cluster(workers=addresses, task_index=rank).tf_config()
            arguments = (variables, rank, SCALE, BATCH.value, config, (MODEL,))
            self._workers.append(Remote(WorkerWithVariables, *arguments))
            stack.callback(self._workers[-1].stop)

    def step(self) -> float:
        """Seconds of a step."""
        return max(call(self._workers, "fit", MODEL, STEPS.value))

    @property
    def serves_metrics(self) -> bool:
        """Whether all workers serve their metrics."""
        return all(call(self._workers, "serves_metrics"))

    def counted(self, rank: int) -> tuple[int, int]:
        """The steps and rows that a worker's metrics tell.

        Raises:
          OSError: it serves none.
        """
        assert self._port is not None
        address = f"http://127.0.0.1:{self._port + rank}/metrics"
        with urllib.request.urlopen(address, timeout=TIMEOUT) as answer:
            text = answer.read().decode()
        numbers = [
            re.search(rf"^tfdist_{name}_total{{.*}} (.*)$", text, re.MULTILINE)
            for name in ("steps", "samples")
        ]
        if None in numbers:
            raise AssertionError(f"worker {rank}: no counts in {text[:1000]}")
        steps, rows = (int(float(found[1])) for found in numbers if found is not None)
        return steps, rows


def verify(plain: Job, serving: Job) -> None:
    """Trains once with both jobs, which also traces the step.

    Raises:
      AssertionError: the metrics are wrong, or the other job has some.
    """
    plain.step()
    before = [serving.counted(rank) for rank in range(WORKERS)]
    serving.step()
    for rank, (steps, rows) in enumerate(before):
        expected = (steps + STEPS.value, rows + STEPS.value * BATCH.value)
        received = serving.counted(rank)
        if received != expected:
            raise AssertionError(
                f"expected {expected} steps and rows of worker {rank}, received {received}"
            )
    if plain.serves_metrics or not serving.serves_metrics:
        raise AssertionError("expected one job with metrics and one without")


def measure(plain: Job, serving: Job) -> dict[str, Any]:
    """A row of the table."""
    verify(plain, serving)
    without, with_metrics = [], []
    for number in range(ROUNDS.value):
        # Neither job is always the second of a pair.
        for job in (plain, serving) if number % 2 else (serving, plain):
            (without if job is plain else with_metrics).append(job.step())
    differences = [on - off for on, off in zip(with_metrics, without, strict=True)]
    low, middle, high = statistics.quantiles(differences, n=4)
    share = middle / statistics.median(without)
    return {
        "model": MODEL,
        "without": statistics.median(without),
        "with": statistics.median(with_metrics),
        "added": middle,
        "quartiles": [low, high],
        "share": share,
        "reached": share <= GOAL,
    }


def show(rows: list[dict[str, Any]]) -> None:
    print(f"\ntraining steps with fit, {WORKERS} workers, milliseconds (fastest decile)\n")
    print(
        f"{'':>6} {'without':>9} {'with':>9} {'added':>9} {'quartiles':>17} {'of a step':>10}  goal"
    )
    for row in rows:
        low, high = row["quartiles"]
        print(
            f"{row['model']:>6} {1e3 * row['without']:9.3f} {1e3 * row['with']:9.3f} "
            f"{1e3 * row['added']:9.3f} {1e3 * low:8.3f} {1e3 * high:8.3f} {row['share']:10.2%}  "
            f"{GOAL:.0%} {'reached' if row['reached'] else 'missed'}"
        )


def draw(file: Path, rows: list[dict[str, Any]]) -> None:
    groups = {row["model"]: {name: 1e3 * row[name] for name in ("without", "with")} for row in rows}
    charts.bars(file, "A step without and with metrics", "milliseconds (fastest decile)", groups)


def main(argv: list[str]) -> None:
    del argv
    with contextlib.ExitStack() as stack:
        plain, serving = Job(stack, None), Job(stack, free_range(WORKERS))
        rows = [measure(plain, serving)]
    show(rows)
    figures = {"batch": BATCH.value, "workers": WORKERS, "rows": rows}
    results.save(JSON.value, figures, lambda file: draw(file, rows))


if __name__ == "__main__":
    # For the processes, which are forked from a process that has imported TensorFlow.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    app.run(main)
