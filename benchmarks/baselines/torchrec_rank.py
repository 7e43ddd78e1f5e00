"""A rank of TorchRec's sharded tables on CPU and Gloo, for benchmarks/worker_tables.py.

    PYTHON torchrec_rank.py RANK SIZE FILE WORKLOADS

runs in a separate environment with TorchRec and without TensorFlow and tfdist; the ranks find each
other through FILE. WORKLOADS is JSON: a list of objects with the fields of `embeddings.Workload`.
It prints "ready VERSION", and then answers lines: "verify CASE STEPS" with "exact", "run CASE FIRST
STEPS" with the seconds that the steps have taken. The optimizer is the fused Adagrad of FBGEMM.
"""

import json
import os
import sys
import time

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import numpy as np
import torch
import torch.distributed as dist
import torchrec
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.types import ShardingEnv

LEARNING_RATE, FRACTION, EPSILON = 0.01, 2.0**-12, 1e-8
BATCHES = 64  # drawn before the timing


class Job:
    """The tables of one workload, and its batches."""

    def __init__(self, workload: dict, rank: int, size: int) -> None:
        self._workload, self._rank, self._size = workload, rank, size
        names = [f"table_{i}" for i in range(workload["tables"])]
        configs = [
            torchrec.EmbeddingBagConfig(
                name=name,
                embedding_dim=workload["width"],
                num_embeddings=workload["rows"],
                feature_names=[name],
                init_fn=torch.nn.init.ones_,
            )
            for name in names
        ]
        module = torchrec.EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
        sharder = EmbeddingBagCollectionSharder(
            fused_params={
                "optimizer": EmbOptimType.EXACT_ADAGRAD,
                "learning_rate": LEARNING_RATE,
                "eps": EPSILON,
            }
        )
        # TorchRec 1.8 divides no rows on CPU: whole tables are dealt, or the columns of one table.
        divided = ParameterConstraints(
            sharding_types=["table_wise" if len(names) > 1 else "column_wise"],
            compute_kernels=["fused"],
            min_partition=workload["width"] // size,
        )
        planner = EmbeddingShardingPlanner(
            topology=Topology(world_size=size, compute_device="cpu"),
            constraints=dict.fromkeys(names, divided),
        )
        plan = planner.collective_plan(module, [sharder], dist.group.WORLD)
        self._model = DistributedModelParallel(
            module,
            env=ShardingEnv.from_process_group(dist.group.WORLD),
            device=torch.device("cpu"),
            plan=plan,
            sharders=[sharder],
        )
        self._names = names
        self._batches = [self._features(self.ids(n, rank)) for n in range(BATCHES)]

    def ids(self, number: int, rank: int) -> np.ndarray:
        """The ids of a step on one rank: int64 (tables, ids)."""
        work = self._workload
        random = np.random.default_rng([number % BATCHES, rank])
        shape = (work["tables"], work["ids"])
        if not work["skew"]:
            return random.integers(work["rows"], size=shape)
        power = 1 - work["skew"]
        ranks = 1 + random.random(shape) * ((work["rows"] + 1.0) ** power - 1)
        return np.minimum(ranks ** (1 / power), work["rows"]).astype(np.int64) - 1

    def _features(self, ids: np.ndarray) -> torchrec.KeyedJaggedTensor:
        lengths = torch.ones(ids.size, dtype=torch.int64)
        values = torch.from_numpy(ids.ravel())
        return torchrec.KeyedJaggedTensor(self._names, values, lengths=lengths)

    def steps(self, first: int, count: int) -> float:
        """Makes steps; returns their seconds."""
        start = time.perf_counter()
        for number in range(first, first + count):
            rows = self._model(self._batches[number % BATCHES]).values()
            (rows.square().sum() * (FRACTION / 2)).backward()
        return time.perf_counter() - start

    def verify(self, steps: int) -> None:
        """Makes the first steps, and raises unless the rows are as expected."""
        self.steps(0, steps)
        for table in range(self._workload["tables"]):
            drawn = [
                np.concatenate([self.ids(step, rank)[table] for rank in range(self._size)])
                for step in range(steps)
            ]
            touched = np.unique(np.concatenate(drawn))
            rows, sums = np.ones(len(touched)), np.zeros(len(touched))
            for ids in drawn:
                times = np.zeros(len(touched))
                np.add.at(times, np.searchsorted(touched, ids), 1)
                gradients = times * FRACTION * rows
                sums += gradients**2
                rows -= LEARNING_RATE * gradients / (np.sqrt(sums) + EPSILON)
            wanted = np.zeros((self._workload["tables"], self._workload["ids"]), np.int64)
            wanted[table] = self.ids(0, self._rank)[table]
            with torch.no_grad():
                found = self._model(self._features(wanted))[self._names[table]].numpy()
            width = self._workload["width"]
            expected = rows[np.searchsorted(touched, wanted[table])]
            np.testing.assert_allclose(found, np.repeat(expected[:, None], width, 1), 0, 1e-5)


def main() -> None:
    rank, size, file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=size)
    jobs = [Job(workload, rank, size) for workload in json.loads(sys.argv[4])]
    print(f"ready {torchrec.__version__}", flush=True)
    for line in sys.stdin:
        what, *numbers = line.split()
        case, *steps = map(int, numbers)
        if what == "verify":
            jobs[case].verify(*steps)
            print("exact", flush=True)
        else:
            print(jobs[case].steps(*steps), flush=True)


if __name__ == "__main__":
    main()
