"""The time that recording a timeline adds to a step of `fit`.

    python benchmarks/timeline.py [--rounds 15] [--steps 30] [--batch 64] [--scale 1] [--json FILE]

Two workers train a dense network of 13 M parameters and a small convolutional one with Keras 3
under `tfdist.MultiWorkerMirroredStrategy`, in turns without and with a timeline, which is started
and stopped as `tfdist timeline` does it. Every worker has its own processor if the machine has
enough. A round is a `fit` and counts as the median of its steps, of the slower worker. Each
recorded round has an unrecorded one before it; the table shows medians over the rounds, and the
median and the quartiles of the ratios of these pairs.

Before the timing a recorded round is verified: the file has every step of both workers, each with
the same number of collectives, and nothing is missing.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from absl import app, flags
from baselines.fit_workers import SKIPPED, TfdistWorker
from baselines.processes import Remote, call
from reporting import charts, results

from tfdist.config.cluster import Cluster
from tfdist.launch.ports import free_ports
from tfdist.observe import channel
from tfdist.observe.timeline.merge import merge

ROUNDS = flags.DEFINE_integer("rounds", 15, "pairs of rounds of each model", lower_bound=2)
STEPS = flags.DEFINE_integer("steps", 30, "of a round", lower_bound=SKIPPED + 2)
BATCH = flags.DEFINE_integer("batch", 64, "examples of each worker in a step", lower_bound=1)
SCALE = flags.DEFINE_float("scale", 1, "of the models' widths", lower_bound=0.01)
JSON = flags.DEFINE_string("json", None, "file to write the figures to; a chart beside it")

MODELS = ("dense", "cnn")
WORKERS = 2
GOAL = 0.02  # of a step
TIMEOUT = 30.0


class RecordedWorker(TfdistWorker):
    """A worker that `tfdist timeline` reaches.

    Args:
      folder: the directory in which it listens.
      *arguments: of `TfdistWorker`.
    """

    def __init__(self, folder: str, *arguments: Any) -> None:
        os.environ["TFDIST_DEBUG_DIR"] = folder
        super().__init__(*arguments)


class Job:
    """Two workers, which are recorded or not.

    Args:
      stack: ends them.
    """

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self._file = self._folder / "timeline.json"
        addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(WORKERS))
        self._workers = []
        for rank in range(WORKERS):
            config = Cluster(workers=addresses, task_index=rank).tf_config()
            arguments = (str(self._folder), rank, SCALE.value, BATCH.value, config)
            self._workers.append(Remote(RecordedWorker, *arguments))
            stack.callback(self._workers[-1].stop)

    def step(self, model: str) -> float:
        """Seconds of a step without a timeline."""
        return max(call(self._workers, "fit", model, STEPS.value))

    def recorded_step(self, model: str) -> float:
        """Seconds of a step with a timeline, which is merged afterwards."""
        self._ask(f"{channel.START_TIMELINE}{self._file}", "recording")
        seconds = self.step(model)
        self._ask(channel.STOP_TIMELINE, "stopped")
        merge(self._file)
        return seconds

    def _ask(self, request: str, expected: str) -> None:
        answers = channel.ask_all(self._folder, request, TIMEOUT)
        if len(answers) != WORKERS or any(not a.startswith(expected) for a in answers.values()):
            raise AssertionError(f"{request}: received {answers}")

    def verify(self, model: str) -> tuple[int, int]:
        """Returns the collectives of a step, and the bytes of a step in the file.

        Raises:
          AssertionError: the file lacks something.
        """
        self.step(model)  # the workers listen when this has ended, and the step is traced
        self.recorded_step(model)
        trace = json.loads(self._file.read_text())
        if trace["otherData"]["notes"]:
            raise AssertionError(f"{model}: {trace['otherData']['notes']}")
        found = [event for event in trace["traceEvents"] if event["ph"] == "X"]
        counts: set[int] = set()
        for process in range(1, 1 + WORKERS):
            own = [event for event in found if event["pid"] == process]
            steps = [event for event in own if event["cat"] == "step"]
            if len(steps) != STEPS.value:
                raise AssertionError(
                    f"{model}: expected {STEPS.value} steps of process {process}, received "
                    f"{len(steps)}"
                )
            steps.sort(key=lambda step: step["ts"])
            # The first and the last step of a `fit` may have collectives of their own.
            for step in steps[1:-1]:
                end = step["ts"] + step["dur"]
                counts.add(
                    sum(e["cat"] == "collective" and step["ts"] <= e["ts"] <= end for e in own)
                )
        if len(counts) != 1 or counts == {0}:
            raise AssertionError(f"{model}: collectives of the steps: {sorted(counts)}")
        return counts.pop(), self._file.stat().st_size // (WORKERS * STEPS.value)


def measure(job: Job, model: str) -> dict[str, Any]:
    """A row of the table."""
    collectives, size = job.verify(model)
    plain, recorded = [], []
    for _ in range(ROUNDS.value):
        plain.append(job.step(model))
        recorded.append(job.recorded_step(model))
    ratios = [on / off - 1 for on, off in zip(recorded, plain, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "model": model,
        "collectives": collectives,
        "bytes": size,
        "without": statistics.median(plain),
        "with": statistics.median(recorded),
        "overhead": middle,
        "quartiles": [low, high],
        "reached": middle <= GOAL,
    }


def show(rows: list[dict[str, Any]]) -> None:
    print(f"\ntraining steps with fit, {WORKERS} workers, milliseconds (median)\n")
    print(f"{'':>6} {'collectives':>12} {'KB/step':>8} {'without':>9} {'with':>9} ", end="")
    print(f"{'overhead':>9} {'quartiles':>17}  goal")
    for row in rows:
        low, high = row["quartiles"]
        print(
            f"{row['model']:>6} {row['collectives']:12d} {row['bytes'] / 1e3:8.1f} "
            f"{1e3 * row['without']:9.2f} {1e3 * row['with']:9.2f} {row['overhead']:9.2%} "
            f"{low:8.2%} {high:8.2%}  {GOAL:.0%} {'reached' if row['reached'] else 'missed'}"
        )


def draw(file: Path, rows: list[dict[str, Any]]) -> None:
    groups = {row["model"]: {name: 1e3 * row[name] for name in ("without", "with")} for row in rows}
    charts.bars(file, "A step without and with a timeline", "milliseconds (median)", groups)


def main(argv: list[str]) -> None:
    del argv
    with contextlib.ExitStack() as stack:
        job = Job(stack)
        rows = [measure(job, model) for model in MODELS]
    show(rows)
    figures = {"batch": BATCH.value, "workers": WORKERS, "rows": rows}
    results.save(JSON.value, figures, lambda file: draw(file, rows))


if __name__ == "__main__":
    # For the processes, which are forked from a process that has imported TensorFlow.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    app.run(main)
