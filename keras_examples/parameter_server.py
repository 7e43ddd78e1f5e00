"""A small network on Fashion-MNIST with its variables on parameter servers.

    tfdist run --workers 2 --ps 1 keras_examples/parameter_server.py

prints once, from the chief (on two cores, in about half a minute):

    [chief] images: Fashion-MNIST in /usr/share/datasets/fashion-mnist
    [chief] mode async: 2 workers, 1 ps; 234 steps of 128 images an epoch on each worker
    [chief] Epoch 1/3
    ...
    [chief] test accuracy: 0.87
    [chief] 702 pulls, 702 pushes of this worker; 0 came too late

Try `--workers 3 --ps 2`, and `--mode sync` or `--mode ssp --staleness 2`. The `ps` tasks run the
same script: there the constructor of the strategy serves until the job ends.
"""

from __future__ import annotations

import argparse
import sys

import data
import keras
from common import SEED, batches, positive, training_parser, wait_for

import tfdist

EVALUATION_BATCH = 500


def parse_arguments() -> argparse.Namespace:
    parser = training_parser(
        __doc__, epochs=3, batch_size=128, together="of each worker, or of all with sync"
    )
    parser.add_argument("--mode", choices=("async", "sync", "ssp"), default="async")
    parser.add_argument("--staleness", type=positive, help="with ssp: steps ahead of the slowest")
    parser.add_argument(
        "--num-aggregate", type=positive, help="with sync: minimum number of workers"
    )
    parser.add_argument("--checkpoint-dir", help="directory of the servers' snapshots")
    return parser.parse_args()


def build_model() -> keras.Model:
    """Two hidden layers, the first normalized over the batch: 236,000 weights."""
    return keras.Sequential(
        [
            keras.Input((data.SIDE, data.SIDE)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Flatten(),
            keras.layers.Dense(256, use_bias=False),
            keras.layers.BatchNormalization(momentum=0.9),
            keras.layers.Activation("relu"),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(data.CLASSES),
        ]
    )


def main() -> None:
    arguments = parse_arguments()
    keras.utils.set_random_seed(SEED)

    strategy = tfdist.ParameterServerStrategy(  # a ps task serves here until the job ends
        mode=arguments.mode,
        staleness=arguments.staleness,
        num_aggregate=arguments.num_aggregate,
        checkpoint_dir=arguments.checkpoint_dir,
    )

    cluster = tfdist.Cluster.from_environment()
    images = data.load_fashion_mnist(announce=cluster.is_chief)
    train_images = images.train_images[: arguments.limit]
    train_labels = images.train_labels[: arguments.limit]
    size = min(arguments.batch_size, len(train_images))
    # In sync mode all workers share a batch; in the others it is one worker's.
    together = 1 if arguments.mode == "sync" else cluster.world_size
    steps = max(1, len(train_images) // (size * together))

    with strategy.scope():
        model = build_model()
        model.compile(
            optimizer=keras.optimizers.Adam(0.001),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )

    if strategy.is_chief:
        workers = f"{cluster.world_size} worker{'s' * (cluster.world_size > 1)}"
        print(
            f"mode {arguments.mode}: {workers}, {len(cluster.ps)} ps; "
            f"{steps} steps of {size} images an epoch on each worker",
            flush=True,
        )
    # A progress bar needs a terminal; in a file one line per epoch is easier to read.
    chief_verbosity = 1 if sys.stdout.isatty() else 2
    model.fit(
        batches(train_images, train_labels, size, training=True),
        epochs=arguments.epochs,
        steps_per_epoch=steps,
        shuffle=False,  # the dataset shuffles
        verbose=chief_verbosity if strategy.is_chief else 0,
    )

    # Each worker would evaluate alone: only the chief does, after all steps of all workers.
    if strategy.is_chief:
        wait_for(model.optimizer, arguments.epochs * steps * together)
        _, accuracy = model.evaluate(
            batches(images.test_images, images.test_labels, EVALUATION_BATCH, training=False),
            verbose=0,
        )
        print(f"test accuracy: {accuracy:.4f} ({images.source})")
        stats = strategy.communication_stats()
        print(
            f"{stats.pulls} pulls, {stats.pushes} pushes of this worker; "
            f"{stats.dropped_pushes} came too late"
        )


if __name__ == "__main__":
    main()
