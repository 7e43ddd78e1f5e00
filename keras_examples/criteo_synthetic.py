"""DLRM on SYNTHETIC clicks with Criteo's features, and 26 tables that grow with new ids.

    tfdist run --workers 2 --ps 2 keras_examples/criteo_synthetic.py

prints once, from the chief (on two cores, in about a minute):

    [chief] SYNTHETIC clicks, 2 workers, 2 ps: 300 steps of 1024 examples on each worker
    [chief] 300/300 - ... - loss: 0.52
    [chief] examples/s in all: (depends on the machine)
    [chief] this worker's rows: 7987200 ids, (...) rows pulled (... MB), ... MB pushed
    [chief] AUC on held-out synthetic clicks: 0.73; best possible: 0.80

The clicks are random (criteo.py): the figures show that the model learns and how fast the
job runs, and nothing about real clicks. Ids lie anywhere between 0 and 2**40; there is no
vocabulary. Most are rare: with `--min-count 2` ids that occur once get no row.

Naumov et al. 2019, "Deep Learning Recommendation Model for Personalization and Recommendation
Systems".
"""

from __future__ import annotations

import argparse
import sys
import time

import criteo
import keras
import numpy as np
import tensorflow as tf
from common import SEED, area_under_curve, positive, wait_for

import tfdist

MB = 1e6


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=positive, default=300, help="of each worker")
    parser.add_argument("--batch-size", type=positive, default=1024, help="of each worker")
    parser.add_argument("--test-batches", type=positive, default=40)
    parser.add_argument("--width", type=positive, default=16, help="of the rows")
    parser.add_argument("--min-count", type=positive, default=1, help="occurrences that make a row")
    parser.add_argument("--seed", type=int, default=SEED, help="of the clicks")
    return parser.parse_args()


def perceptron(inputs: keras.KerasTensor, units: tuple[int, ...]) -> keras.KerasTensor:
    for width in units:
        inputs = keras.layers.Dense(width, activation="relu")(inputs)
    return inputs


class Products(keras.layers.Layer):
    """The inner products of all pairs of vectors: (n, vectors, width) to (n, pairs)."""

    def call(self, vectors: tf.Tensor) -> tf.Tensor:
        products = tf.matmul(vectors, vectors, transpose_b=True)
        below = np.tril_indices(vectors.shape[1], -1)
        positions = np.ravel_multi_index(below, [vectors.shape[1]] * 2)
        return tf.gather(tf.reshape(products, [-1, vectors.shape[1] ** 2]), positions, axis=1)

    def compute_output_shape(self, shape: tuple) -> tuple:
        return (shape[0], shape[1] * (shape[1] - 1) // 2)


def build_model(width: int, min_count: int, placement: str | None = None) -> keras.Model:
    """A table for each categorical feature, whose rows hold a weight and a vector of `width`.

    The weights are added. The vectors' products go through a perceptron, together with the output
    of another perceptron for the numerics.
    """
    numeric = keras.Input((criteo.NUMERIC,), name="numeric")
    ids = keras.Input((criteo.CATEGORICAL,), dtype="int64", name="ids")
    dense = perceptron(numeric, (64, width))
    rows = [
        tfdist.layers.Embedding(
            output_dim=1 + width,
            optimizer="adagrad",
            min_count=min_count,
            placement=placement,
            name=f"feature_{i}",
        )(ids[:, i])
        for i in range(criteo.CATEGORICAL)
    ]
    rows = keras.ops.stack(rows, axis=1)
    vectors = keras.ops.concatenate([dense[:, None, :], rows[:, :, 1:]], axis=1)
    above = perceptron(keras.ops.concatenate([dense, Products()(vectors)], axis=1), (64, 32))
    weights = keras.ops.sum(rows[:, :, 0], axis=1, keepdims=True)
    return keras.Model({"numeric": numeric, "ids": ids}, keras.layers.Dense(1)(above) + weights)


def clicks(seed: int, first: int, count: int, size: int) -> tf.data.Dataset:
    """Batches for the model, from numbered blocks of clicks."""

    def prepared(numeric: tf.Tensor, ids: tf.Tensor, label: tf.Tensor) -> tuple[dict, tf.Tensor]:
        logs = tf.math.log1p(numeric)
        return {"numeric": tf.where(tf.math.is_nan(logs), 0.0, logs), "ids": ids}, label

    return criteo.batches(seed, first, count, size).map(prepared).prefetch(4)


def examples(seed: int, first: int, count: int, size: int) -> tf.data.Dataset:
    """Batches as `clicks`, of which each worker has its own."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return clicks(seed, first, count, size).with_options(options)


class Clock(keras.callbacks.Callback):
    """Times the steps after the first one, which traces the model.

    Attributes:
      seconds: wall time of the timed steps.
      steps: their number.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seconds, self.steps = 0.0, -1

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self.steps += 1
        if self.steps == 0:
            self._began = time.perf_counter()
        self.seconds = time.perf_counter() - self._began


def main() -> None:
    arguments = parse_arguments()
    keras.utils.set_random_seed(SEED)
    strategy = tfdist.ParameterServerStrategy()  # a ps task serves here until the job ends
    cluster = tfdist.Cluster.from_environment()
    workers, steps, size = cluster.world_size, arguments.steps, arguments.batch_size

    with strategy.scope():
        model = build_model(arguments.width, arguments.min_count)
        model.compile(
            optimizer=keras.optimizers.Adagrad(0.1),
            loss=keras.losses.BinaryCrossentropy(from_logits=True),
        )
    if strategy.is_chief:
        print(
            f"SYNTHETIC clicks, {workers} worker{'s' * (workers > 1)}, {len(cluster.ps)} ps: "
            f"{steps} steps of {size} examples on each worker",
            flush=True,
        )

    clock = Clock()
    # A progress bar needs a terminal; in a file one line per epoch is easier to read.
    chief_verbosity = 1 if sys.stdout.isatty() else 2
    model.fit(
        examples(arguments.seed, cluster.rank * steps, steps, size),
        shuffle=False,
        callbacks=[clock],
        verbose=chief_verbosity if strategy.is_chief else 0,
    )

    # Each worker would predict alone: only the chief does, after all steps of all workers.
    if strategy.is_chief:
        wait_for(model.optimizer, steps * workers)
        if clock.steps > 0:
            print(f"examples/s in all: {workers * clock.steps * size / clock.seconds:.0f}")
        stats = strategy.communication_stats()
        print(
            f"this worker's rows: {stats.lookup_ids} ids, {stats.lookup_rows} rows pulled "
            f"({stats.lookup_bytes / MB:.1f} MB), {stats.bytes_pushed / MB:.1f} MB pushed"
        )
        held_out = (arguments.seed, workers * steps, arguments.test_batches, size)
        scores = model.predict(examples(*held_out), verbose=0)[:, 0]
        labels, logits = criteo.labels_and_logits(*held_out)
        print(
            f"AUC on held-out synthetic clicks: {area_under_curve(labels, scores):.4f}; "
            f"best possible: {area_under_curve(labels, logits):.4f}"
        )


if __name__ == "__main__":
    main()
