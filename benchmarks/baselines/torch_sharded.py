"""A worker of PyTorch that trains with Adam over Gloo, for benchmarks/sharding.py.

    torch_sharded.py RANK WORKERS FILE KIND WIDTH LAYERS BATCH

runs in a separate environment with PyTorch and without TensorFlow and tfdist; the workers find each
other through FILE. KIND is "copies" (DistributedDataParallel), "optimizer" (that with
ZeroRedundancyOptimizer) or "full" (fully_shard, each layer a unit). It answers "fit STEPS" with the
median seconds of a step, and "memory" with the bytes above the base: the peak, and between fits.
"""

import os
import statistics
import sys
import time

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
import torch.distributed as dist
from resident import Peak, resident
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

SKIPPED, RATE = 2, 1e-4


class Worker:
    """A dense network, and steps of it.

    Args:
      kind: how its state is held.
      width: of the layers.
      layers: their number.
      batch: examples of a step.
    """

    def __init__(self, kind: str, width: int, layers: int, batch: int) -> None:
        torch.manual_seed(1)
        units = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)]
        model = nn.Sequential(*units)
        if kind == "full":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            for unit in units:
                fully_shard(unit, mesh=mesh)
            self._model = fully_shard(model, mesh=mesh)
        else:
            self._model = DistributedDataParallel(model)
        parameters = list(self._model.parameters())
        if kind == "optimizer":
            self._optimizer = ZeroRedundancyOptimizer(parameters, torch.optim.Adam, lr=RATE)
        else:
            self._optimizer = torch.optim.Adam(parameters, lr=RATE)
        self._rows = torch.randn(batch, width)

    def fit(self, steps: int) -> float:
        """Median seconds of a step."""
        ends = []
        for _ in range(steps):
            self._optimizer.zero_grad()
            loss = nn.functional.mse_loss(self._model(self._rows), self._rows)
            loss.backward()
            self._optimizer.step()
            loss.item()
            ends.append(time.perf_counter())
        took = [after - before for before, after in zip(ends, ends[1:])]  # noqa: B905
        return statistics.median(took[SKIPPED:])


def main(rank: int, workers: int, file: str, kind: str, shape: list[int]) -> None:
    """Answers until its input ends."""
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {processors[rank % len(processors)]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=workers)
    Worker(kind, 8, 1, shape[2]).fit(SKIPPED + 2)
    base = resident()
    worker = Worker(kind, *shape)
    most = base
    for line in sys.stdin:
        what, *steps = line.split()
        if what == "memory":
            print(most - base, resident() - base, flush=True)
            continue
        with Peak() as peak:
            seconds = worker.fit(int(steps[0]))
        most = max(most, peak.bytes)
        print(seconds, flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *sys.argv[3:5], list(map(int, sys.argv[5:8])))
