"""How a job grows: a thousand ranks that meet, and 128 ranks of the collective engine.

    scripts/bench scale [--ranks 1000] [--core_ranks 128] [--processes 10] [--json FILE]

All ranks are threads of `--processes` processes on this machine, so that its processors, not a
network, limit the times. One of the processes, with a tenth of the ranks, is killed on the way.

Control plane: rank 0 has a process of its own. All ranks meet, with a secret. After the kill the
lost ranks are started again, and all meet again, as after `tfdist run --restarts`.

Core: the ranks connect with each other and all-reduce. After the kill the others connect again, as
in an elastic job, and all-reduce.
"""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from absl import app, flags
from baselines import processes, simulated_ranks
from reporting import charts, results

from tfdist.launch.ports import free_ports

RANKS = flags.DEFINE_integer("ranks", 1000, "of the control plane", lower_bound=3)
CORE_RANKS = flags.DEFINE_integer("core_ranks", 128, "of the collective engine", lower_bound=3)
PROCESSES = flags.DEFINE_integer("processes", 10, "that hold the ranks", lower_bound=2)
ROUNDS = flags.DEFINE_integer("rounds", 5, "timed all-reduces of each size", lower_bound=1)
JSON = flags.DEFINE_string("json", None, "file to write the figures to; a chart beside it")

SIZES = {"4 KB": 1 << 10, "1 MB": 1 << 18}  # float32
MEGABYTE = 2**20


def parts(first: int, last: int) -> list[tuple[int, int]]:
    """Divides a range of ranks among the processes."""
    count = min(PROCESSES.value, last - first)
    bounds = [first + i * (last - first) // count for i in range(count + 1)]
    return list(zip(bounds, bounds[1:], strict=False))


@contextmanager
def stopped_at_end() -> Iterator[list[processes.Remote]]:
    """Yields a list for processes, and stops them at the end."""
    held: list[processes.Remote] = []
    try:
        yield held
    finally:
        for remote in held:
            remote.stop()


def timed(held: list[processes.Remote], *what: Any) -> tuple[list[Any], float]:
    """Calls a method in all processes; returns the results, and the seconds until the last."""
    began = time.monotonic()
    found = processes.call(held, *what)
    return found, time.monotonic() - began


def control_plane() -> dict[str, Any]:
    """Measures the rendezvous of `--ranks` ranks."""
    size = RANKS.value
    job = [f"127.0.0.1:{port}" for port in free_ports(size)], secrets.token_bytes(16)
    ranges = [(0, 1), *parts(1, size)]
    with stopped_at_end() as held:
        held += [processes.Remote(simulated_ranks.ControlRanks, *job, *part) for part in ranges]
        processes.call(held, "count")  # all exist
        first, seconds = timed(held, "meet", size)
        began = time.monotonic()
        held.pop().stop()
        held.append(processes.Remote(simulated_ranks.ControlRanks, *job, *ranges[-1]))
        second, _ = timed(held, "meet", size)
        again = time.monotonic() - began
    generations = {generation for generation, _ in first}, {g for g, _ in second}
    if generations != ({1}, {2}):
        raise RuntimeError(f"expected generations 1 and 2, received {generations}")
    return {
        "ranks": size,
        "seconds": seconds,
        "killed": ranges[-1][1] - ranges[-1][0],
        "seconds_after_kill": again,
        "memory_of_rank_0": second[0][1],
    }


def reduced(held: list[processes.Remote], size: int) -> dict[str, float]:
    """Measures all-reduces of `size` ranks; returns the seconds by the size of the tensor."""
    seconds = {}
    for name, elements in SIZES.items():
        rounds = [timed(held, "all_reduce", elements) for _ in range(ROUNDS.value + 1)][1:]
        sums = {total for found, _ in rounds for sums in found for total in sums}
        if sums != {size}:
            raise RuntimeError(f"all_reduce of {name}: expected {size}, received {sums}")
        seconds[name] = statistics.median(seconds for _, seconds in rounds)
    return seconds


def core() -> dict[str, Any]:
    """Measures `--core_ranks` communicators."""
    size = CORE_RANKS.value

    def connect(generation: int) -> float:
        addresses = [found for part in processes.call(held, "addresses") for found in part]
        return timed(held, "connect", secrets.token_bytes(32), generation, addresses)[1]

    ranges = parts(0, size)
    with stopped_at_end() as held:
        held += [processes.Remote(simulated_ranks.CoreRanks, *part, size) for part in ranges]
        figures: dict[str, Any] = {"ranks": size, "connect_seconds": connect(1)}
        figures["all_reduce_seconds"] = reduced(held, size)
        figures["memory_per_rank"] = statistics.mean(processes.call(held, "memory_per_rank"))
        left = ranges[-1][0]
        began = time.monotonic()
        held.pop().stop()
        for remote, (first, _) in zip(held, ranges, strict=False):
            remote.begin("reconfigure", first, left)
        for remote in held:
            remote.end()
        connect(2)
        figures |= {"left": left, "reconnect_seconds": time.monotonic() - began}
        figures["all_reduce_seconds_after_kill"] = reduced(held, left)
    return figures


def show(control: dict[str, Any], engine: dict[str, Any]) -> None:
    print(f"\n{control['ranks']} ranks of the control plane")
    print(f"  meet                               {control['seconds']:8.2f} s")
    again = control["seconds_after_kill"]
    print(f"  {control['killed']:3} are killed: until all meet again  {again:8.2f} s")
    print(f"  rank 0 grows by                    {control['memory_of_rank_0'] / MEGABYTE:8.1f} MB")
    print(f"\n{engine['ranks']} ranks of the core")
    print(f"  connect                            {engine['connect_seconds']:8.2f} s")
    for name, seconds in engine["all_reduce_seconds"].items():
        print(f"  all-reduce of {name:>4}                 {1e3 * seconds:8.1f} ms")
    print(f"  memory of a rank                   {engine['memory_per_rank'] / MEGABYTE:8.1f} MB")
    print(
        f"  {engine['left']:3} connect again after a kill      {engine['reconnect_seconds']:8.2f} s"
    )
    for name, seconds in engine["all_reduce_seconds_after_kill"].items():
        print(f"  all-reduce of {name:>4}                 {1e3 * seconds:8.1f} ms")


def draw(file: Path, control: dict[str, Any], engine: dict[str, Any]) -> None:
    groups = {
        f"{control['ranks']} ranks meet": {
            "at first": control["seconds"],
            "after a kill": control["seconds_after_kill"],
        },
        f"{engine['ranks']} ranks of the core connect": {
            "at first": engine["connect_seconds"],
            "after a kill": engine["reconnect_seconds"],
        },
    }
    charts.bars(file, "Large jobs on one machine", "seconds", groups)


def main(argv: list[str]) -> None:
    del argv
    control, engine = control_plane(), core()
    show(control, engine)
    figures = {"control": control, "core": engine}
    results.save(JSON.value, figures, lambda file: draw(file, control, engine))


if __name__ == "__main__":
    app.run(main)
