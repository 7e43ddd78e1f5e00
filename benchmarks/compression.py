"""Bytes saved and accuracy lost by compressing gradients, on Fashion-MNIST.

    python benchmarks/compression.py [--epochs 2] [--seeds 1] [--json FILE] [--rows ...]

trains the same small network on two workers with every method of `tfdist.CommunicationOptions`,
from the same weights, on the same batches, for the same number of steps. "bytes a step" counts the
gradients that each worker sent, by its communicator. Accuracy is the mean over the seeds; the
spread is the largest minus the smallest.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from baselines import own_jobs

ROOT = Path(__file__).resolve().parents[1]
WORKERS = 2
BATCH = 128
LAST_RATE = 0.1  # fraction of the initial learning rate

# Each row's class in tfdist.compression, and its arguments.
ROWS = {
    "none": ("NoCompression", {}),
    "fp16": ("FP16", {}),
    "bf16": ("BF16", {}),
    "topk, ratio 0.1": ("TopK", {"ratio": 0.1}),
    "topk, ratio 0.01": ("TopK", {"ratio": 0.01}),
    "topk, ratio 0.001": ("TopK", {"ratio": 0.001}),
    "onebit": ("OneBit", {}),
    "powersgd, rank 4": ("PowerSGD", {"rank": 4}),
    "powersgd, rank 1": ("PowerSGD", {"rank": 1}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--limit", type=int, help="use only the first LIMIT training images")
    parser.add_argument("--rows", nargs="*", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.task:
        train_rows(json.loads(arguments.task))
        return
    report = measure(arguments)
    show(report)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


def measure(arguments: argparse.Namespace) -> dict:
    """Trains every row with every seed, in two processes that start once."""
    names = ("epochs", "seeds", "limit", "rows")
    return own_jobs.run(__file__, WORKERS, {name: getattr(arguments, name) for name in names})


def show(report: dict) -> None:
    """Prints the table."""
    print(
        f"{report['source']}; {report['parameters']:,} weights, {report['steps']} steps of "
        f"{BATCH} images, {WORKERS} workers, {report['seeds']} seed(s)"
    )
    print(f"{'':20}{'bytes a step':>14}{'saved':>9}{'accuracy':>10}{'spread':>9}{'loss':>9}")
    for row in report["rows"]:
        print(
            f"{row['name']:20}{row['bytes_per_step']:14,.0f}{row['times_fewer']:8.1f}x"
            f"{row['accuracy']:10.4f}{row['spread']:9.4f}{row['loss']:9.4f}"
        )


def train_rows(task: dict) -> None:
    """The program of each worker."""
    sys.path.insert(0, str(ROOT / "keras_examples"))
    import data

    import tfdist

    images = data.load_fashion_mnist(announce=False)
    report = {"source": images.source, "seeds": task["seeds"], "rows": []}
    for name in task["rows"]:
        runs = [train(name, seed, task, images) for seed in range(task["seeds"])]
        report.update(parameters=runs[0].pop("parameters"), steps=runs[0].pop("steps"))
        accuracies = [run["accuracy"] for run in runs]
        mean = {key: sum(run[key] for run in runs) / len(runs) for key in runs[0]}
        report["rows"].append({"name": name, **mean, "spread": max(accuracies) - min(accuracies)})
    whole = 4 * report["parameters"] * 2 * (WORKERS - 1) / WORKERS  # a ring's share, float32
    for row in report["rows"]:
        row["times_fewer"] = whole / row["bytes_per_step"]
    if tfdist.Cluster.from_environment().is_chief:
        Path(task["result"]).write_text(json.dumps(report))


def train(name: str, seed: int, task: dict, images) -> dict[str, float]:
    """Trains once; returns this worker's figures of a row."""
    import keras
    import numpy as np
    import tensorflow as tf

    import tfdist

    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    kind, options = ROWS[name]
    strategy = tfdist.MultiWorkerMirroredStrategy(
        communication_options=tfdist.CommunicationOptions(
            compression=getattr(tfdist.compression, kind)(**options)
        )
    )
    x = images.train_images[: task["limit"], ..., None].astype("float32") / 255
    y = images.train_labels[: task["limit"]]
    steps = task["epochs"] * (len(x) // BATCH)
    with strategy.scope():
        model = network(x.shape[1:])
        rate = keras.optimizers.schedules.CosineDecay(0.05, steps, alpha=LAST_RATE)
        optimizer = keras.optimizers.SGD(rate, momentum=0.9)
        optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(features, labels):
        def of_replica(features, labels):
            with tf.GradientTape() as tape:
                loss = loss_of(labels, model(features, training=True)) / WORKERS
            weights = [v.value for v in model.trainable_variables]
            optimizer.apply(tape.gradient(loss, weights), model.trainable_variables)

        strategy.run(of_replica, args=(features, labels))

    rank = strategy.communicator.rank
    random = np.random.default_rng(seed)
    before = strategy.communication_stats().bytes_sent
    for _ in range(task["epochs"]):
        order = random.permutation(len(x))
        for first in range(0, len(x) - BATCH + 1, BATCH):
            mine = order[first : first + BATCH][rank::WORKERS]  # disjoint shares
            step(tf.constant(x[mine]), tf.constant(y[mine]))
    sent = strategy.communication_stats().bytes_sent - before

    outputs = tf.concat(
        [
            model(part[..., None].astype("float32") / 255)
            for part in np.array_split(images.test_images, 10)
        ],
        0,
    )
    right = tf.argmax(outputs, 1).numpy() == images.test_labels
    return {
        "accuracy": float(np.mean(right)),
        "loss": float(loss_of(images.test_labels, outputs)),
        "bytes_per_step": sent / steps,
        "parameters": sum(int(np.prod(v.shape)) for v in model.trainable_variables),
        "steps": steps,
    }


def network(shape: tuple[int, ...]):
    """The network of keras_examples/fashion_mnist.py, with fewer channels."""
    import keras

    return keras.Sequential(
        [
            keras.Input(shape),
            keras.layers.Conv2D(16, 5, strides=2, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, strides=2, padding="same", activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


if __name__ == "__main__":
    main()
