"""Step time by bucket size: `bytes_per_pack` of `tfdist.CommunicationOptions`.

    python benchmarks/bucket_size.py [--rounds 7] [--steps 6] [--models dense,cnn] [--gigabits 0]
                                     [--json FILE]

Two workers on this machine train a dense network of 13 M parameters in twelve layers, and a small
convolutional one, with Keras 3 under `tfdist.MultiWorkerMirroredStrategy`, once for each size. The
sizes are timed in turn, round by round, in the same processes. A step's time is the median of a
round and of the slower worker; the table shows medians over the rounds. Before the timing all
workers must hold the same weights, bit for bit, with every size. "auto" has ended its search before
it is timed.

With `--gigabits` each worker has its own host, a network namespace, and a link of that speed
(baselines/namespaces.py). This needs root and the commands ip and tc.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from absl import app, flags
from baselines import namespaces
from baselines.processes import Remote, call
from baselines.training import MODELS, TITLES, WORKERS, TrainingRank, tf_configs
from reporting import charts, results

ROUNDS = flags.DEFINE_integer("rounds", 7, "counted rounds of each size", lower_bound=3)
STEPS = flags.DEFINE_integer("steps", 6, "counted steps of a round", lower_bound=2)
KINDS = flags.DEFINE_list("models", list(MODELS), "models to train")
GIGABITS = flags.DEFINE_float("gigabits", 0, "per second, of links; 0: none", lower_bound=0)
JSON = flags.DEFINE_string("json", None, "file to write the figures to; a chart beside it")

KB, MB = 1 << 10, 1 << 20
SIZES: dict[str, int | str] = {
    "64 KB": 64 * KB,
    "1 MB": MB,
    "4 MB": 4 * MB,
    "16 MB": 16 * MB,
    "one bucket": 1 << 40,
    "auto": "auto",
}
# Steps of a search among four sizes, and some more.
SEARCH = 60
CHOSEN = flags.DEFINE_list("sizes", list(SIZES), f"any of: {', '.join(SIZES)}")


@contextlib.contextmanager
def started_ranks() -> Iterator[list[Remote]]:
    """Workers, on this machine or each on its own host."""
    with contextlib.ExitStack() as stack:
        if GIGABITS.value:
            network = stack.enter_context(namespaces.network(WORKERS, GIGABITS.value))
            configs = tf_configs([f"{host}:{namespaces.PORT}" for host in network.addresses])
            made = [(namespaces.inside, host, TrainingRank) for host in network.hosts]
        else:
            configs, made = tf_configs(), [(TrainingRank,)] * WORKERS
        ranks = []
        for make, config in zip(made, configs, strict=True):
            ranks.append(Remote(*make, config))
            stack.callback(ranks[-1].stop)
        yield ranks


def measure(ranks: list[Remote], kind: str) -> dict[str, float]:
    """Median seconds of a step with each size, timed in turn."""
    digests = set()
    sizes = {name: SIZES[name] for name in CHOSEN.value}
    for size in sizes.values():
        call(ranks, "add", kind, size)
        call(ranks, "train", kind, size, 3)
        digests.update(call(ranks, "digest", kind, size))
        if size == "auto":
            call(ranks, "train", kind, size, SEARCH)
    if len(digests) > 1:
        raise AssertionError(f"{kind}: the weights depend on the worker or the size of buckets")
    seconds: dict[str, list[float]] = {name: [] for name in sizes}
    for _ in range(ROUNDS.value + 1):
        for name, size in sizes.items():
            seconds[name].append(max(call(ranks, "train", kind, size, STEPS.value)))
    return {name: statistics.median(times[1:]) for name, times in seconds.items()}


def show(rows: list[dict[str, Any]]) -> None:
    where = f"{GIGABITS.value:g} Gbit/s apart" if GIGABITS.value else "on one machine"
    print(f"\n{WORKERS} workers {where}, milliseconds per step of fit (median)")
    print(f"{'':>16}" + "".join(f"{name:>12}" for name in CHOSEN.value))
    for row in rows:
        times = "".join(f"{row['seconds'][name] * 1e3:12.1f}" for name in CHOSEN.value)
        print(f"{TITLES[row['model']]:>16}{times}")


def draw(file: Path, rows: list[dict[str, Any]]) -> None:
    groups = {
        TITLES[row["model"]]: {name: 1e3 * time for name, time in row["seconds"].items()}
        for row in rows
    }
    charts.bars(file, "A training step by the size of buckets", "milliseconds (median)", groups)


def main(argv: list[str]) -> None:
    del argv
    with started_ranks() as ranks:
        rows = [{"model": kind, "seconds": measure(ranks, kind)} for kind in KINDS.value]
    show(rows)
    figures = {"workers": WORKERS, "gigabits": GIGABITS.value, "rows": rows}
    results.save(JSON.value, figures, lambda file: draw(file, rows))


if __name__ == "__main__":
    app.run(main)
