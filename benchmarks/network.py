"""All-reduce and training between hosts with 1 Gbit/s links, which are network namespaces.

    sudo python benchmarks/network.py [--hosts 4] [--per_host 1] [--gigabits 1]
                                      [--megabytes 8 --megabytes 64 --megabytes 256] [--rounds 5]
                                      [--scale 1] [--compute 0.5 --compute 1 --compute 3]
                                      [--step_rounds 3] [--quick] [--json FILE]

Every host is a network namespace whose link is limited in both directions
(baselines/namespaces.py). First bare sockets measure the throughput of a link: from one host to
another, and from every host to the next at the same time.

Then all ranks reduce float32 tensors. Results are verified first; implementations are timed in
turn; the table shows medians over the rounds. Small tensors are reduced several times in a row in
one `tf.function`, 64 MB in all, as a step reduces its buckets:

    tfdist       `tfdist.ops.all_reduce`
    tfdist fp16  the same, travelling as float16
    TensorFlow   a stock `tf.distribute.MultiWorkerMirroredStrategy`, RING
    bare ring    baselines/bare_ring.cc

They are compared with the bound: for B bytes each of N hosts must send and receive 2(N-1)/N x B,
at the speed of the link. "of line" uses the rate of Ethernet frames (1 Gbit/s = 125 MB/s, of which
1448 in 1514 are payload); "of goodput" the rate of the bare sockets. "sent" is the traffic of the
first host's link, with headers, per byte of the tensor.

Last comes a training step of a network of VGG-16's size (`--scale` of its width) whose computing
is simulated by waiting (baselines/training_steps.py), for several computing times Ts, given as
multiples of the gradients' bound Tt. The efficiency of N hosts is the step time of one host alone
over the step time of all; predicted is 1/(1 + Tt/Ts), for communication after the computing.

`--quick` is a small version of everything, for tests. Needs root and the commands ip and tc.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import sys
import time
from typing import Any

from absl import app, flags
from baselines import namespaces
from baselines.all_reducers import StockRank, TfdistRank
from baselines.hosts import Job, measure_streams
from baselines.processes import call
from baselines.training_steps import StockSteps, TfdistSteps, vgg16
from reporting import network_report, results

HOSTS = flags.DEFINE_integer("hosts", 4, "namespaces", lower_bound=2)
PER_HOST = flags.DEFINE_integer("per_host", 1, "ranks on each", lower_bound=1)
GIGABITS = flags.DEFINE_float("gigabits", 1, "per second, of a link", lower_bound=0.01)
MEGABYTES = flags.DEFINE_multi_float("megabytes", [8, 64, 256], "of the tensors, MB = 2^20")
ROUNDS = flags.DEFINE_integer("rounds", 5, "counted rounds of each implementation", lower_bound=1)
SCALE = flags.DEFINE_float("scale", 1, "of the network's width; 0: no training", lower_bound=0)
COMPUTE = flags.DEFINE_multi_float("compute", [0.5, 1, 3], "Ts as multiples of Tt")
STEP_ROUNDS = flags.DEFINE_integer("step_rounds", 3, "counted training steps", lower_bound=1)
QUICK = flags.DEFINE_bool("quick", False, "8 MB, a tenth of the width, few rounds")
JSON = flags.DEFINE_string("json", None, "file to write the figures to; charts beside it")

MB = 1 << 20
IN_A_ROW = 64 * MB

# An implementation: its ranks, and the name of their reduction or step.
Implementation = tuple[list[Any], str]


def seconds_of_bound(size: float, bytes_per_second: float) -> float:
    return 2 * (HOSTS.value - 1) / HOSTS.value * size / bytes_per_second


def measure_sizes(job: Job, goodput: float) -> list[dict[str, Any]]:
    """A row for each size and implementation."""
    with contextlib.ExitStack() as stack:
        enter, size = stack.enter_context, job.size
        ours = enter(job.ranks(TfdistRank, lambda rank: (rank, size, job.tfdist(rank))))
        stock = enter(job.ranks(StockRank, lambda rank: (rank, size, job.stock())))
        implementations: dict[str, Implementation] = {
            "tfdist": (ours, "exact"),
            "tfdist fp16": (ours, "fp16"),
            "TensorFlow": (stock, "exact"),
            "bare ring": (enter(job.bare_ring()), ""),
        }
        rows = []
        for megabytes in MEGABYTES.value:
            rows += measure_size(job.network, implementations, round(megabytes * MB), goodput)
    return rows


def measure_size(
    network: namespaces.Network,
    implementations: dict[str, Implementation],
    size: int,
    goodput: float,
) -> list[dict[str, Any]]:
    seconds: dict[str, list[float]] = {name: [] for name in implementations}
    sent: dict[str, list[float]] = {name: [] for name in implementations}
    busy: dict[str, list[float]] = {name: [] for name in implementations}
    for ranks, how in implementations.values():
        call(ranks, "verify", 1, size, how)
    in_a_row = max(1, IN_A_ROW // size)
    for _ in range(ROUNDS.value):
        for name, (ranks, how) in implementations.items():
            before, clock = network.sent(0), Processors()
            # A warm-up call, which waits for the others, precedes the timed ones.
            turn, warm = ((1, how, in_a_row), in_a_row) if how else ((in_a_row,), 1)
            times = call(ranks, "run", 1, size, *turn)
            seconds[name].append(max(map(float, times)))
            busy[name].append(clock.busy())
            sent[name].append((network.sent(0) - before) / (warm + in_a_row) / size)
    line = seconds_of_bound(size, network.bytes_per_second)
    payload = namespaces.PAYLOAD / namespaces.FRAME
    return [
        {
            "implementation": name,
            "bytes": size,
            "seconds": (median := statistics.median(seconds[name])),
            "bound_line": line,
            "of_line": line / median,
            "of_payload": line / payload / median,
            "of_goodput": seconds_of_bound(size, goodput) / median,
            "sent": statistics.median(sent[name]),
            "processors": statistics.median(busy[name]),
        }
        for name in implementations
    ]


class Processors:
    """The load of the machine's processors since the object's creation."""

    def __init__(self) -> None:
        self._before = self._ticks()

    def busy(self) -> float:
        """The share of time that the processors were not idle."""
        idle, total = (n - b for n, b in zip(self._ticks(), self._before, strict=True))
        return 1 - idle / total if total else 0.0

    @staticmethod
    def _ticks() -> tuple[int, int]:
        with open("/proc/stat") as file:
            ticks = [int(number) for number in file.readline().split()[1:9]]
        return ticks[3] + ticks[4], sum(ticks)


def measure_steps(job: Job, goodput: float) -> dict[str, Any]:
    """Medians of training steps, for every computing time."""
    scale, size = SCALE.value, job.size
    parameters = sum(layer.parameters for layer in vgg16(scale))
    transfer = seconds_of_bound(4 * parameters, goodput)
    rows = []
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        ours = enter(job.ranks(TfdistSteps, lambda rank: (rank, size, scale, job.tfdist(rank))))
        stock = enter(job.ranks(StockSteps, lambda rank: (rank, size, scale, job.stock())))
        implementations: dict[str, Implementation] = {
            "alone": (ours, "alone"),
            "after": (ours, "after"),
            "overlapped": (ours, "overlapped"),
            "stock": (stock, "stock"),
        }
        for ranks, how in implementations.values():  # verifies, and traces
            call(ranks, "run", how, 0.0)
        for compute in COMPUTE.value:
            seconds: dict[str, list[float]] = {name: [] for name in implementations}
            for _ in range(STEP_ROUNDS.value):
                for name, (ranks, how) in implementations.items():
                    seconds[name].append(max(call(ranks, "run", how, compute * transfer)))
            rows.append({name: statistics.median(times) for name, times in seconds.items()})
    for row in rows:
        row["predicted"] = 1 / (1 + transfer / row["alone"])
    return {"parameters": parameters, "transfer": transfer, "rows": rows}


def measure(network: namespaces.Network) -> dict[str, Any]:
    streams = measure_streams(network)
    job = Job(network, PER_HOST.value)
    with open("/proc/sys/net/ipv4/tcp_congestion_control") as file:
        congestion = file.read().strip()
    figures: dict[str, Any] = {
        "hosts": HOSTS.value,
        "per_host": PER_HOST.value,
        "gigabits": GIGABITS.value,
        "congestion_control": congestion,
        "streams": streams,
        "rows": measure_sizes(job, streams["all"]),
    }
    if SCALE.value:
        figures["training"] = measure_steps(job, streams["all"])
    return figures


def main(argv: list[str]) -> None:
    del argv
    if QUICK.value:
        flags.FLAGS.megabytes, flags.FLAGS.rounds = [8], 2
        flags.FLAGS.scale, flags.FLAGS.compute, flags.FLAGS.step_rounds = 0.1, [1], 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    began = time.perf_counter()
    with namespaces.network(HOSTS.value, GIGABITS.value) as network:
        figures = measure(network)
    figures["took"] = time.perf_counter() - began
    network_report.show(figures)
    results.save(JSON.value, figures, lambda file: network_report.draw(file, figures))


if __name__ == "__main__":
    # For the processes, which are forked from a process that has imported TensorFlow.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    app.run(main)
