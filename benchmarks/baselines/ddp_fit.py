"""A worker of PyTorch's DistributedDataParallel over Gloo, for benchmarks/elastic.py.

    torchrun --standalone --nproc-per-node N --max-restarts R ddp_fit.py SOCKET WIDTH CHECKPOINT

runs in a separate environment with PyTorch and without TensorFlow and tfdist. It trains the network
of elastic_fit.py, saves in the file CHECKPOINT, and continues from there after a restart.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
import torch.distributed as dist
from elastic_fit import BATCH, CLASSES, EXAMPLES, INPUTS, RATE, SAVED_EVERY
from step_reports import Reporter
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main(socket: str, width: int, checkpoint: Path) -> None:
    """Trains."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    reporter = Reporter(socket, rank)
    torch.manual_seed(1)
    model = nn.Sequential(
        *(nn.Linear(INPUTS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()),
        nn.Linear(width, CLASSES),
    )
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    x, y = torch.randn(EXAMPLES, INPUTS), torch.randint(CLASSES, (EXAMPLES,))
    step = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    parallel = DistributedDataParallel(model)
    while True:
        begin = (step * size + rank) * BATCH % EXAMPLES
        optimizer.zero_grad()
        outputs = parallel(x[begin : begin + BATCH])
        loss = nn.functional.cross_entropy(outputs, y[begin : begin + BATCH])
        loss.backward()
        optimizer.step()
        step += 1
        reporter.send("step", step=step, rank=rank, size=size, loss=loss.item())
        if rank == 0 and step % SAVED_EVERY == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, partial := checkpoint.with_suffix(".partial"))
            partial.rename(checkpoint)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
