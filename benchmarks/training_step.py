"""The time that distribution adds to a step: tfdist, TensorFlow and PyTorch, in one run.

    python benchmarks/training_step.py [--rounds 5] [--steps 20] [--batch 64] [--scale 1]
                                       [--models dense,cnn,resnet50] [--torch PYTHON] [--json FILE]

Two workers on one machine, and one worker alone, train a dense network of 13 M parameters, a small
convolutional one, and ResNet-50 (25.6 M) on images of 64 x 64 pixels with an eighth of the batch.
They train with SGD and the same batch for each worker:

    tfdist      Keras 3's `fit` under `tfdist.MultiWorkerMirroredStrategy`
    TensorFlow  tf_keras's `fit` under a stock `tf.distribute.MultiWorkerMirroredStrategy` (RING);
                Keras 3 does not work there
    PyTorch     a loop of steps of DistributedDataParallel over Gloo; one worker has no wrapper

Every worker has its own processor if the machine has enough. The overhead is the step time of two
workers minus the step time of one. All workers train on the same examples, so two workers reach the
weights of one, which is verified before the timing. Implementations are timed in turn, round by
round. A round is a `fit` and counts as the median of its steps, of the slower worker; the table
shows medians over the rounds.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from absl import app, flags
from baselines.fit_workers import SKIPPED, StockWorker, TfdistWorker
from baselines.processes import Remote, call
from baselines.programs import FOLDER, Program, why_no_torch
from reporting import charts, results

from tfdist.config.cluster import Cluster
from tfdist.launch.ports import free_ports

ROUNDS = flags.DEFINE_integer("rounds", 5, "counted rounds of each implementation", lower_bound=1)
STEPS = flags.DEFINE_integer("steps", 20, "of a round", lower_bound=SKIPPED + 2)
BATCH = flags.DEFINE_integer("batch", 64, "examples of each worker in a step", lower_bound=1)
SCALE = flags.DEFINE_float("scale", 1, "of the models' widths", lower_bound=0.01)
JSON = flags.DEFINE_string("json", None, "file to write the figures to; a chart beside it")

MODELS = flags.DEFINE_list("models", ["dense", "cnn", "resnet50"], "the networks")
TORCH = flags.DEFINE_string(
    "torch",
    str(Path(__file__).resolve().parents[1] / ".venv-torch/bin/python"),
    "a Python with PyTorch; its column is empty without",
)

WORKERS = (1, 2)
VERIFIED_STEPS = 5
TOLERANCE = 1e-2  # relative, of a variable's change; half a gradient would halve it
# Of a peer's overhead.
GOALS = {"TensorFlow": 1 / 3, "PyTorch": 1 / 2}

# The processes of each job, by implementation and number of workers.
Jobs = dict[tuple[str, int], list[Any]]


def start_jobs(stack: contextlib.ExitStack) -> Jobs:
    jobs: Jobs = {}
    for count in WORKERS:
        ports = free_ports(2 * count)
        addresses = tuple(f"127.0.0.1:{port}" for port in ports)
        ours, stock = addresses[:count], addresses[count:]
        jobs["tfdist", count] = []
        jobs["TensorFlow", count] = []
        for rank in range(count):
            arguments = (rank, SCALE.value, BATCH.value)
            tf_config = Cluster(workers=ours, task_index=rank).tf_config()
            jobs["tfdist", count].append(Remote(TfdistWorker, *arguments, tf_config, MODELS.value))
            stack.callback(jobs["tfdist", count][-1].stop)
            jobs["TensorFlow", count].append(Remote(StockWorker, *arguments, stock, MODELS.value))
            stack.callback(jobs["TensorFlow", count][-1].stop)
    return jobs


def start_torch(stack: contextlib.ExitStack, folder: str) -> Jobs:
    """PyTorch's jobs; none where it cannot be used."""
    reason = why_no_torch(TORCH.value)
    if reason is not None:
        print(f"PyTorch: {reason}")
        return {}
    jobs: Jobs = {}
    for count in WORKERS:
        arguments = [str(Path(folder) / f"store-{count}"), str(SCALE.value), str(BATCH.value)]
        command = [TORCH.value, str(FOLDER / "ddp_steps.py")]
        jobs["PyTorch", count] = []
        for rank in range(count):
            program = Program(
                f"PyTorch worker {rank}", [*command, str(rank), str(count), *arguments]
            )
            stack.callback(program.stop)
            jobs["PyTorch", count].append(program)
    return jobs


def numbers(answer: Any) -> list[float]:
    """The numbers in the line of a program, or of a process."""
    if isinstance(answer, str):
        return [float(word) for word in answer.split()]
    return answer if isinstance(answer, list) else [answer]


def verify(jobs: Jobs, model: str) -> None:
    """Raises unless all workers of an implementation have the weights of one alone."""
    for job in jobs.values():
        call(job, "fit", model, VERIFIED_STEPS)
    for (name, count), job in jobs.items():
        (expected,) = map(numbers, call(jobs[name, 1], "progress", model))
        for rank, progress in enumerate(map(numbers, call(job, "progress", model))):
            for i, (a, b) in enumerate(zip(progress, expected, strict=True)):
                if abs(a - b) > TOLERANCE * abs(b):
                    raise AssertionError(
                        f"{name}, {model}, worker {rank} of {count}: variable {i} went {a}, "
                        f"with one worker {b}"
                    )


def measure(jobs: Jobs, model: str) -> dict[str, Any]:
    """A row of the table."""
    verify(jobs, model)
    seconds: dict[tuple[str, int], list[float]] = {which: [] for which in jobs}
    for _ in range(ROUNDS.value):
        for which, job in jobs.items():
            seconds[which].append(max(map(numbers, call(job, "fit", model, STEPS.value)))[0])
    row: dict[str, Any] = {
        "model": model,
        "parameters": jobs["tfdist", 1][0].call("parameters", model),
    }
    for name in dict.fromkeys(name for name, _ in jobs):
        one, two = (statistics.median(seconds[name, count]) for count in WORKERS)
        row[name] = {"one": one, "two": two, "overhead": two - one}
    for peer, goal in GOALS.items():
        if peer in row:
            part = row["tfdist"]["overhead"] / row[peer]["overhead"]
            row[peer] |= {"ours_of_theirs": part, "reached": part <= goal}
    return row


def show(rows: list[dict[str, Any]]) -> None:
    print(f"\ntraining steps, {BATCH.value} examples a worker, milliseconds (median)\n")
    print(f"{'':>18} {'':>11} {'1':>9} {'2':>9} {'overhead':>9} {'ours of theirs':>15}  goal")
    for row in rows:
        label = f"{row['model']} {row['parameters'] / 1e6:.1f} M"
        for name in ("tfdist", *GOALS):
            if name not in row:
                continue
            figures = row[name]
            times = " ".join(f"{1e3 * figures[key]:9.2f}" for key in ("one", "two", "overhead"))
            print(f"{label:>18} {name:>11} {times}", end="")
            if name in GOALS:
                reached = "reached" if figures["reached"] else "missed"
                print(f" {figures['ours_of_theirs']:15.2f}  {GOALS[name]:.2f} {reached}", end="")
            print()
            label = ""


def draw(file: Path, rows: list[dict[str, Any]]) -> None:
    groups = {
        f"{row['model']}, {row['parameters'] / 1e6:.1f} M parameters": {
            name: 1e3 * row[name]["overhead"] for name in ("tfdist", *GOALS) if name in row
        }
        for row in rows
    }
    title = "Time that a second worker adds to a training step"
    charts.bars(file, title, "milliseconds (median)", groups)


def main(argv: list[str]) -> None:
    del argv
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        jobs = start_jobs(stack) | start_torch(stack, folder)
        rows = [measure(jobs, model) for model in MODELS.value]
    show(rows)
    figures = {"batch": BATCH.value, "rows": rows}
    results.save(JSON.value, figures, lambda file: draw(file, rows))


if __name__ == "__main__":
    # For the processes, which are forked from a process that has imported TensorFlow.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    app.run(main)
