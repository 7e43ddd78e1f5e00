"""`tfdist plan` against measured steps, between hosts that are network namespaces.

    sudo python benchmarks/planner.py [--hosts 4] [--gigabits 0.1 --gigabits 1]
                                      [--scale 0.2 --scale 0.4] [--compute 0.5 --compute 2]
                                      [--rounds 3] [--quick] [--json FILE]

The hosts' links are limited to each of the speeds (baselines/namespaces.py). Training steps of a
network like VGG-16, of a part of its width (`--scale`), compute by waiting
(baselines/training_steps.py), for times that are multiples of the ring's time on the link. The
kinds of steps are measured in turn, without an exchange ("alone"), with one after the computing,
and with one beside back-propagation; sums are verified in every step. A step's time is the slowest
rank's; medians over the rounds are compared.

The planner is given what a user has: the number of parameters, the measured step alone, the link,
and when buckets of gradients are complete, as `tfdist plan --model` measures it. "link" is the
link's rate as it is sold, 125 MB/s for 1 Gbit/s. "sockets" is the rate of bare sockets, the best of
three measurements, as iperf3 tells it: without the headers of Ethernet, IP and TCP. The goal is an
error of at most 10 % with the rate of the sockets.

Needs root and the commands ip and tc. `--quick` is a small version, for tests.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import time
from typing import Any

from absl import app, flags
from baselines import namespaces
from baselines.hosts import Job, measure_streams
from baselines.processes import call
from baselines.training_steps import FORWARD, Layer, TfdistSteps, vgg16
from reporting import planner_report, results

from tfdist.plan import costs, traffic

HOSTS = flags.DEFINE_integer("hosts", 4, "namespaces", lower_bound=2)
GIGABITS = flags.DEFINE_multi_float("gigabits", [0.1, 1], "per second, of the links")
SCALE = flags.DEFINE_multi_float("scale", [0.2, 0.4], "of the network's width")
COMPUTE = flags.DEFINE_multi_float("compute", [0.5, 2], "of a step, as multiples of the ring")
ROUNDS = flags.DEFINE_integer("rounds", 3, "counted steps of each kind", lower_bound=1)
QUICK = flags.DEFINE_bool("quick", False, "one link, size and computing time; one round")
JSON = flags.DEFINE_string("json", None, "file to write the figures to; a chart beside it")

KINDS = ("after", "overlapped")
STREAMS = 3


def profile_of(layers: list[Layer]) -> list[costs.GradientBucket]:
    """When each bucket of gradients is complete, as `tfdist plan --model` measures it."""
    total = sum(layer.multiplications for layer in layers)
    gradients, done = [], 0
    for layer in reversed(layers):
        done += layer.multiplications
        ready = FORWARD + (1 - FORWARD) * done / total
        # Kernel and bias, in the order in which the steps pass them.
        gradients.append(costs.GradientBucket(layer.parameters - layer.shape[-1], ready))
        gradients.append(costs.GradientBucket(layer.shape[-1], ready))
    return costs.bucketed(gradients)


def predictions(
    layers: list[Layer], compute: float, bandwidth: float, workers: int
) -> dict[str, float]:
    """The planner's step times, by the kind of step."""
    training = costs.PlannedTraining(
        parameters=sum(layer.parameters for layer in layers),
        compute=compute,
        links=traffic.Links(bandwidth),
        profile=profile_of(layers),
    )
    return {
        kind: costs.all_reduce(training, workers, overlapped=kind == "overlapped").step
        for kind in KINDS
    }


def measure_scale(job: Job, gigabits: float, goodput: float, scale: float) -> list[dict[str, Any]]:
    """A row for each computing time and kind of step."""
    layers = vgg16(scale)
    parameters = sum(layer.parameters for layer in layers)
    ring = traffic.seconds(
        traffic.ring(job.size, 4 * parameters), traffic.Links(job.network.bytes_per_second)
    )
    rows = []
    with job.ranks(TfdistSteps, lambda r: (r, job.size, scale, job.tfdist(r))) as ranks:
        for kind in ("alone", *KINDS):  # verifies, traces, and fills pools of memory
            call(ranks, "run", kind, 0.0)
        for multiple in COMPUTE.value:
            seconds: dict[str, list[float]] = {kind: [] for kind in ("alone", *KINDS)}
            for _ in range(ROUNDS.value):
                for kind, times in seconds.items():
                    times.append(max(call(ranks, "run", kind, multiple * ring)))
            alone = statistics.median(seconds["alone"])
            by_link = predictions(layers, alone, job.network.bytes_per_second, job.size)
            by_goodput = predictions(layers, alone, goodput, job.size)
            for kind in KINDS:
                measured = statistics.median(seconds[kind])
                rows.append(
                    {
                        "gigabits": gigabits,
                        "parameters": parameters,
                        "kind": kind,
                        "alone": alone,
                        "seconds": measured,
                        "all": seconds[kind],
                        "link": by_link[kind],
                        "sockets": by_goodput[kind],
                        "link_error": by_link[kind] / measured - 1,
                        "sockets_error": by_goodput[kind] / measured - 1,
                    }
                )
    return rows


def measure() -> dict[str, Any]:
    """The figures of all links and sizes."""
    # Of the machine, before: other programs make steps slower.
    figures: dict[str, Any] = {"hosts": HOSTS.value, "streams": {}, "rows": []}
    figures["load"] = os.getloadavg()[0]
    for gigabits in GIGABITS.value:
        with namespaces.network(HOSTS.value, gigabits) as network:
            # Other programs of the machine only lower it.
            goodput = max(measure_streams(network)["all"] for _ in range(STREAMS))
            figures["streams"][f"{gigabits:g}"] = goodput
            for scale in SCALE.value:
                figures["rows"] += measure_scale(Job(network), gigabits, goodput, scale)
    return figures


def main(argv: list[str]) -> None:
    del argv
    if QUICK.value:
        flags.FLAGS.gigabits, flags.FLAGS.scale = [1], [0.1]
        flags.FLAGS.compute, flags.FLAGS.rounds = [2], 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    began = time.perf_counter()
    figures = measure()
    figures["took"] = time.perf_counter() - began
    planner_report.show(figures)
    results.save(JSON.value, figures, lambda file: planner_report.draw(file, figures))


if __name__ == "__main__":
    # For the processes, which are forked from a process that has imported TensorFlow.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    app.run(main)
