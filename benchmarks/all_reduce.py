"""All-reduce between processes of this machine: tfdist against TensorFlow's own, in one run.

    python benchmarks/all_reduce.py [--workers 2] [--rounds 15] [--json FILE]

Every worker holds both: tfdist's communicator, and a stock
`tf.distribute.MultiWorkerMirroredStrategy` (RING over gRPC). Both reduce the same float32 tensors
inside a `tf.function`. Each result is verified before anything is timed; the two take turns, round
by round, so that a drift of the machine's speed meets both; the table shows medians over the
rounds, on rank 0.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from absl import app, flags

from tfdist.cluster import Cluster
from tfdist.ports import free_ports

WORKERS = flags.DEFINE_integer("workers", 2, "processes", lower_bound=2)
ROUNDS = flags.DEFINE_integer("rounds", 15, "counted rounds of each contender", lower_bound=3)
JSON = flags.DEFINE_string("json", None, "file to write the figures to")
RANK = flags.DEFINE_integer("rank", None, "set for the processes that this script starts")
STOCK = flags.DEFINE_list("stock", None, "addresses for TensorFlow's own servers")

KB, MB = 1 << 10, 1 << 20
# Name, number of tensors, bytes of each, calls per round.
CASES = [
    ("4 KB", 1, 4 * KB, 50),
    ("64 KB", 1, 64 * KB, 50),
    ("1 MB", 1, MB, 20),
    ("16 MB", 1, 16 * MB, 4),
    ("64 MB", 1, 64 * MB, 2),
    ("100 x 4 KB", 100, 4 * KB, 20),
]


def start_workers() -> int:
    """Runs this script once per rank and waits; the exit code is the first one that is not zero."""
    ports = free_ports(2 * WORKERS.value)
    ours = tuple(f"127.0.0.1:{port}" for port in ports[: WORKERS.value])
    stock = ",".join(f"127.0.0.1:{port}" for port in ports[WORKERS.value :])
    processes = []
    for rank in range(WORKERS.value):
        environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="2")
        environment["TF_CONFIG"] = Cluster(workers=ours, task_index=rank).tf_config()
        command = [sys.executable, __file__, *sys.argv[1:], f"--rank={rank}", f"--stock={stock}"]
        processes.append(subprocess.Popen(command, env=environment))
    try:
        return next((code for process in processes if (code := process.wait())), 0)
    finally:
        for process in processes:
            process.kill()


def make_contenders() -> dict[str, Callable]:
    """Both all-reduces, as functions from a list of tensors to the list of their sums."""
    import tensorflow as tf

    from tfdist import job, ops

    # First, because TensorFlow's server must be configured before anything runs.
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({"worker": STOCK.value}),
            task_type="worker",
            task_id=RANK.value,
            rpc_layer="grpc",
        ),
        tf.distribute.experimental.CommunicationOptions(implementation="RING"),
    )
    communicator = job.join(Cluster.from_environment()).communicator

    def all_reduce(*tensors):
        # TensorFlow refuses a tensor without a device, such as an argument; tf.identity gives it
        # one and copies nothing.
        placed = [tf.identity(tensor) for tensor in tensors]
        return tf.distribute.get_replica_context().all_reduce("SUM", placed)

    @tf.function
    def stock(tensors):
        return strategy.run(all_reduce, args=tensors)

    @tf.function
    def ours(tensors):
        return ops.all_reduce(list(tensors), communicator)

    return {"stock": stock, "tfdist": ours}


def measure(contenders: dict[str, Callable], count: int, size: int, calls: int) -> dict[str, float]:
    """Median seconds per call of each contender, taking turns."""
    import numpy as np
    import tensorflow as tf

    length = size // 4
    pattern = np.arange(length, dtype=np.float32) % 1000
    tensors = tuple(tf.constant(pattern + i + 10 * RANK.value) for i in range(count))
    expected = WORKERS.value * pattern + 10 * sum(range(WORKERS.value))
    for name, reduce in contenders.items():
        for i, result in enumerate(reduce(tensors)):
            if not np.array_equal(result, expected + WORKERS.value * i):
                raise AssertionError(f"{name}: wrong sum of {count} x {size} bytes")
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS.value + 1):
        for name, reduce in contenders.items():
            start = time.perf_counter()
            for _ in range(calls):
                reduce(tensors)
            seconds[name].append((time.perf_counter() - start) / calls)
    return {name: statistics.median(times[1:]) for name, times in seconds.items()}


def run_worker() -> None:
    contenders = make_contenders()
    rows = []
    for name, count, size, calls in CASES:
        times = measure(contenders, count, size, calls)
        rows.append({"case": name, **times, "ratio": times["stock"] / times["tfdist"]})
    if RANK.value != 0:
        return
    print(
        f"\n{WORKERS.value} workers on one machine, float32, milliseconds per all-reduce (median)"
    )
    print(f"{'':>12} {'stock RING':>11} {'tfdist':>9} {'faster':>8}")
    for row in rows:
        print(
            f"{row['case']:>12} {row['stock'] * 1e3:11.2f} {row['tfdist'] * 1e3:9.2f} "
            f"{row['ratio']:7.1f}x"
        )
    if JSON.value:
        path = Path(JSON.value)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"workers": WORKERS.value, "rows": rows}, indent=2) + "\n")


def main(argv: list[str]) -> None:
    del argv
    if RANK.value is None:
        sys.exit(start_workers())
    run_worker()


if __name__ == "__main__":
    app.run(main)
