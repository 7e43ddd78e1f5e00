"""Images per second of workers that share a TFRecord file: JPEGs are decoded, cropped and flipped.

    python benchmarks/input_images.py [--images 1920] [--torch PYTHON] [--json FILE]

    tfdist          each worker of a `tfdist.MultiWorkerMirroredStrategy` maps its rows
    whole batches   the same with a pipeline that cannot be divided: each maps all rows
    PyTorch         its DataLoader with one process and a DistributedSampler

Each worker has one processor for itself. All must have the same images in an epoch.
Implementations are timed in turn, round by round; the table has the median over the epochs of all
rounds, of the slowest worker. PyTorch's own environment is made by scripts/bench.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import app, flags
from baselines.image_readers import ImageReader, write_images
from baselines.images import BATCH
from baselines.processes import Remote, call
from baselines.programs import FOLDER, Program
from reporting import charts, results

from tfdist.config.cluster import Cluster
from tfdist.launch.ports import free_ports

IMAGES = flags.DEFINE_integer("images", 1920, f"in the file, a multiple of {BATCH}", lower_bound=1)
EPOCHS = flags.DEFINE_integer("epochs", 2, "of a round", lower_bound=1)
ROUNDS = flags.DEFINE_integer("rounds", 3, "of each implementation", lower_bound=1)
TORCH = flags.DEFINE_string(
    "torch",
    str(Path(__file__).resolve().parents[1] / ".venv-torch/bin/python"),
    "a Python with PyTorch and Pillow; its column is empty without",
)
JSON = flags.DEFINE_string("json", None, "file to write the figures to; a chart beside it")


def start_readers(stack: contextlib.ExitStack, path: str, workers: int, is_cut: bool) -> list[Any]:
    configs = ["{}"]
    if workers > 1:
        addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(workers))
        configs = [Cluster(workers=addresses, task_index=i).tf_config() for i in range(workers)]
    job = [
        Remote(ImageReader, config, path, IMAGES.value, rank, is_cut)
        for rank, config in enumerate(configs)
    ]
    for remote in job:
        stack.callback(remote.stop)
    return job


def start_torch(stack: contextlib.ExitStack, path: str, workers: int) -> list[Any]:
    script = str(FOLDER / "torch_images.py")
    job = [
        Program(
            f"PyTorch worker {rank}",
            [TORCH.value, script, str(rank), str(workers), str(rank), path],
        )
        for rank in range(workers)
    ]
    for program in job:
        stack.callback(program.stop)
    return job


def numbers(answer: Any) -> Sequence[float]:
    return [float(word) for word in answer.split()] if isinstance(answer, str) else answer


def verify(jobs: dict[str, list[Any]]) -> None:
    """Raises unless the workers of each job have all images, and the same values in them."""
    expected = None
    for name, job in jobs.items():
        parts = [numbers(answer) for answer in call(job, "total")]
        found = tuple(map(sum, zip(*parts, strict=True)))
        expected = expected or found
        if found[0] != IMAGES.value or abs(found[1] - expected[1]) > 1e-6 * expected[1]:
            raise AssertionError(f"{name}: expected images and values {expected}, received {found}")


def measure(jobs: dict[str, list[Any]]) -> dict[str, float]:
    """The images per second of each implementation."""
    epochs: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(ROUNDS.value):
        for name, job in jobs.items():
            of_workers = [numbers(answer) for answer in call(job, "read", EPOCHS.value)]
            epochs[name] += map(max, zip(*of_workers, strict=True))
    return {name: IMAGES.value / statistics.median(of_one) for name, of_one in epochs.items()}


def show(rates: dict[str, float]) -> None:
    print(f"\n{IMAGES.value} images of a TFRecord file, a processor for each worker\n")
    print(f"{'':>18} {'images/s':>9} {'of one worker':>14}")
    for name, rate in rates.items():
        one = rates.get(f"{name.split(',')[0]}, 1", rates["tfdist, 1"])
        print(f"{name:>18} {rate:9.0f} {rate / one:13.2f}x")


def main(argv: list[str]) -> None:
    del argv
    counts = [workers for workers in (1, 2) if workers <= len(os.sched_getaffinity(0))]
    with contextlib.ExitStack() as stack:
        path = str(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "images.tfrecord")
        write_images(path, IMAGES.value)
        jobs: dict[str, list[Any]] = {}
        for workers in counts:
            jobs[f"tfdist, {workers}"] = start_readers(stack, path, workers, True)
            if workers > 1:
                jobs[f"whole batches, {workers}"] = start_readers(stack, path, workers, False)
            if Path(TORCH.value).exists():
                jobs[f"PyTorch, {workers}"] = start_torch(stack, path, workers)
        verify(jobs)
        rates = measure(jobs)
    show(rates)
    results.save(
        JSON.value,
        {"images per second": rates},
        lambda file: charts.bars(file, "Images of a TFRecord file", "images/s", {"epoch": rates}),
    )


if __name__ == "__main__":
    # For the processes, which are forked from a process that has imported TensorFlow.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    app.run(main)
