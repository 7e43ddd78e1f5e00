"""A worker of PyTorch's DistributedDataParallel over Gloo, for benchmarks/training_step.py.

    ddp_steps.py RANK WORKERS FILE SCALE BATCH

runs in a separate environment with PyTorch and without TensorFlow and tfdist; the workers find each
other through FILE. It trains the networks of fit_workers.py. It answers "fit MODEL STEPS" with the
median seconds of a step, and "progress MODEL" with the absolute change of each parameter.
"""

import os
import statistics
import sys
import time

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

EXAMPLES, SKIPPED, RATE = 512, 2, 0.01


class Bottleneck(nn.Module):
    """A block of ResNet-50 (He et al., 2016)."""

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * channels
        self.body = nn.Sequential(
            *(nn.Conv2d(inputs, channels, 1, stride), nn.BatchNorm2d(channels), nn.ReLU()),
            *(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()),
            *(nn.Conv2d(channels, outputs, 1), nn.BatchNorm2d(outputs)),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(self.body(x) + self.shortcut(x))


def resnet50() -> nn.Module:
    """25.6 M parameters."""
    stem = [nn.Conv2d(3, 64, 7, 2, padding=3), nn.BatchNorm2d(64), nn.ReLU()]
    blocks: list[nn.Module] = []
    inputs = 64
    for stage, count in enumerate((3, 4, 6, 3)):
        channels = 64 * 2**stage
        for i in range(count):
            blocks.append(Bottleneck(inputs, channels, 2 if i == 0 and stage else 1))
            inputs = 4 * channels
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000)]
    return nn.Sequential(*stem, nn.MaxPool2d(3, 2, padding=1), *blocks, *head)


def dense(scale: float) -> nn.Module:
    """13.0 M parameters."""
    widths = [1024, *(max(1, round(units * scale)) for units in (2560, 2560, 1500))]
    hidden = [
        layer
        for inputs, outputs in zip(widths, widths[1:])  # noqa: B905
        for layer in (nn.Linear(inputs, outputs), nn.ReLU())
    ]
    return nn.Sequential(*hidden, nn.Linear(widths[-1], 10))


def cnn(scale: float) -> nn.Module:
    """0.4 M parameters."""
    first, second, units = (max(1, round(width * scale)) for width in (32, 64, 256))
    return nn.Sequential(
        *(nn.Conv2d(1, first, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(first, second, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(second * 25, units), nn.ReLU(), nn.Linear(units, 10)),
    )


class Worker:
    """A model, its data, and steps of it.

    Args:
      name: "dense", "cnn" or "resnet50".
      scale: of the model's width.
      batch: examples of a step.
      workers: their number.
    """

    def __init__(self, name: str, scale: float, batch: int, workers: int) -> None:
        torch.manual_seed(1)
        self._model = (
            resnet50() if name == "resnet50" else {"dense": dense, "cnn": cnn}[name](scale)
        )
        self._began = [parameter.detach().clone() for parameter in self._model.parameters()]
        shape = {"dense": (1024,), "cnn": (1, 28, 28), "resnet50": (3, 64, 64)}[name]
        torch.manual_seed(2)
        self._x, self._y = torch.randn(EXAMPLES, *shape), torch.randint(10, (EXAMPLES,))
        self._optimizer = torch.optim.SGD(self._model.parameters(), RATE)
        self._batch = batch
        self._parallel = DistributedDataParallel(self._model) if workers > 1 else self._model

    def fit(self, steps: int) -> float:
        """Median seconds of a step."""
        ends = []
        for step in range(steps):
            begin = step * self._batch % EXAMPLES
            self._optimizer.zero_grad()
            outputs = self._parallel(self._x[begin : begin + self._batch])
            loss = nn.functional.cross_entropy(outputs, self._y[begin : begin + self._batch])
            loss.backward()
            self._optimizer.step()
            loss.item()
            ends.append(time.perf_counter())
        took = [after - before for before, after in zip(ends, ends[1:])]  # noqa: B905
        return statistics.median(took[SKIPPED:])

    def progress(self) -> list[float]:
        """The absolute change of each parameter since the start."""
        now = [parameter.detach() for parameter in self._model.parameters()]
        return [float((a - b).abs().sum()) for a, b in zip(now, self._began)]  # noqa: B905


def main(rank: int, workers: int, file: str, scale: float, batch: int) -> None:
    """Answers until its input ends."""
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {processors[rank % len(processors)]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=workers)
    models: dict[str, Worker] = {}
    for line in sys.stdin:
        what, name, *steps = line.split()
        if name not in models:
            examples = max(2, batch // 8) if name == "resnet50" else batch
            models[name] = Worker(name, scale, examples, workers)
        if what == "progress":
            print(*models[name].progress(), flush=True)
        else:
            print(models[name].fit(int(steps[0])), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), sys.argv[3], float(sys.argv[4]), int(sys.argv[5]))
