"""Memory and descriptors over many steps and many communicators.

    python benchmarks/memory.py [--workers 2] [--steps 20000] [--communicators 200] [--json FILE]

Ranks run steps, each of which reduces five tensors together, and gathers, scatters and broadcasts
others of changing sizes; then they make, use and close communicators one after the other. The
tables show at intervals a process's resident memory without pages of files, open descriptors,
threads and mappings.
All results are verified. "growth" is the difference between the last two quarters, after
everything that is made once exists.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import Any

from absl import app, flags
from baselines.memory_rank import MemoryRank
from baselines.processes import Remote, call
from reporting import charts, results

from tfdist.config.cluster import Cluster
from tfdist.launch.ports import free_ports

WORKERS = flags.DEFINE_integer("workers", 2, "processes", lower_bound=2)
STEPS = flags.DEFINE_integer("steps", 20_000, "in all", lower_bound=20)
COMMUNICATORS = flags.DEFINE_integer("communicators", 200, "in all", lower_bound=10)
JSON = flags.DEFINE_string("json", None, "file to write the figures to; a chart beside it")

SAMPLES = 20  # of the steps; half of it for the communicators
WHAT = ("resident", "descriptors", "threads", "mappings")

# The number of steps or communicators so far, and the resources of each rank.
Sample = dict[str, Any]


def run_steps(ranks: list[Remote]) -> list[Sample]:
    call(ranks, "steps", 1)  # traces
    samples = []
    done = 0
    for sample in range(SAMPLES + 1):
        count = STEPS.value * sample // SAMPLES - done
        done += count
        samples.append({"after": done, "ranks": call(ranks, "steps", max(count, 1))})
    return samples


def run_communicators(ranks: list[Remote]) -> list[Sample]:
    samples = []
    half = SAMPLES // 2
    sampled = [COMMUNICATORS.value * sample // half for sample in range(1, half + 1)]
    for number in range(1, COMMUNICATORS.value + 1):
        key = secrets.token_bytes(32)
        addresses = [f"127.0.0.1:{port}" for port in call(ranks, "listen")]
        now = call(ranks, "connect_and_close", key, number, addresses)
        if number == 1 or number in sampled:
            samples.append({"after": number, "ranks": now})
    return samples


def growth(samples: list[Sample]) -> dict[str, int]:
    """The growth of all ranks together from the third quarter to the last.

    A quarter counts with its lowest sample: a buffer of a MB that comes and goes is no growth.
    """
    quarter = len(samples) // 4
    before, after = samples[-2 * quarter : -quarter], samples[-quarter:]

    def lowest(part: list[Sample], what: str) -> int:
        ranks = zip(*(sample["ranks"] for sample in part), strict=True)
        return sum(min(held[what] for held in of_rank) for of_rank in ranks)

    return {what: lowest(after, what) - lowest(before, what) for what in WHAT}


def show(title: str, samples: list[Sample]) -> None:
    print(f"\n{title}, {WORKERS.value} ranks: each process holds\n")
    print(f"{'after':>8}", end="")
    for rank in range(WORKERS.value):
        print(f"  {f'rank {rank}: MB':>12} {'fds':>4} {'threads':>7} {'maps':>5}", end="")
    print()
    for sample in samples:
        print(f"{sample['after']:8}", end="")
        for held in sample["ranks"]:
            print(f"  {held['resident'] / 1024:12.1f} {held['descriptors']:4}", end="")
            print(f" {held['threads']:7} {held['mappings']:5}", end="")
        print()
    grown = growth(samples)
    print(f"growth, of all ranks: {grown['resident']} KB", end="")
    print("".join(f", {grown[what]} {what}" for what in WHAT[1:]))


def draw(file: Path, samples: list[Sample]) -> None:
    ticks = [sample["after"] for sample in samples[:: SAMPLES // 4]]
    charts.lines(
        file,
        f"Resident memory of {WORKERS.value} processes over {STEPS.value} steps",
        "steps",
        "MB",
        {tick: str(tick) for tick in ticks},
        {
            f"rank {rank}": [(s["after"], s["ranks"][rank]["resident"] / 1024) for s in samples]
            for rank in range(WORKERS.value)
        },
        log=False,
    )


def main(argv: list[str]) -> None:
    del argv
    workers = tuple(f"127.0.0.1:{port}" for port in free_ports(WORKERS.value))
    with contextlib.ExitStack() as stack:
        ranks = []
        for rank in range(WORKERS.value):
            tf_config = Cluster(workers=workers, task_index=rank).tf_config()
            ranks.append(Remote(MemoryRank, rank, WORKERS.value, tf_config))
            stack.callback(ranks[-1].stop)
        steps = run_steps(ranks)
        communicators = run_communicators(ranks)
    show(f"{STEPS.value} steps", steps)
    show(f"{COMMUNICATORS.value} communicators made, used and closed", communicators)
    figures = {"workers": WORKERS.value, "steps": steps, "communicators": communicators}
    figures["growth"] = {"steps": growth(steps), "communicators": growth(communicators)}
    results.save(JSON.value, figures, lambda file: draw(file, steps))


if __name__ == "__main__":
    # For the processes, which are forked from a process that has imported TensorFlow.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    app.run(main)
