"""A rank of PyTorch's Gloo, for benchmarks/all_reduce.py: the bare call, without TensorFlow.

    PYTHON gloo_rank.py RANK SIZE FILE

runs in a separate environment with PyTorch and without TensorFlow and tfdist; the ranks
find each other through FILE. It prints "ready VERSION", and then answers lines: "verify COUNT
BYTES" with "exact", "run COUNT BYTES CALLS" with the seconds of a call. Several tensors are reduced
in one coalesced call.
"""

import os
import sys
import time
import warnings

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
import torch.distributed as dist

# all_reduce_coalesced is deprecated, but Gloo supports no successor.
warnings.simplefilter("ignore")


def all_reduce(tensors: list) -> None:
    """In place."""
    if len(tensors) == 1:
        dist.all_reduce(tensors[0])
    else:
        dist.all_reduce_coalesced(tensors)


def verify(rank: int, size: int, count: int, length: int) -> str:
    pattern = torch.arange(length) % 1000
    tensors = [(pattern + i + 10 * rank).float() for i in range(count)]
    all_reduce(tensors)
    for i, tensor in enumerate(tensors):
        expected = (size * (pattern + i) + 5 * size * (size - 1)).float()
        if not torch.equal(tensor, expected):
            raise AssertionError(f"Gloo: wrong sum of tensor {i} of {count} x {length}")
    return "exact"


def run(count: int, length: int, calls: int) -> float:
    tensors = [torch.zeros(length) for _ in range(count)]  # sums in place stay finite
    all_reduce(tensors)
    start = time.perf_counter()
    for _ in range(calls):
        all_reduce(tensors)
    return (time.perf_counter() - start) / calls


def main() -> None:
    rank, size, file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=size)
    print(f"ready {torch.__version__}", flush=True)
    for line in sys.stdin:
        what, *numbers = line.split()
        count, size_in_bytes, *calls = map(int, numbers)
        if what == "verify":
            print(verify(rank, size, count, size_in_bytes // 4), flush=True)
        else:
            print(run(count, size_in_bytes // 4, *calls), flush=True)


if __name__ == "__main__":
    main()
