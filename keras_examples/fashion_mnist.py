"""A small convolutional network on Fashion-MNIST, trained by all workers together.

    tfdist run --workers 2 keras_examples/fashion_mnist.py

prints once, from the chief (on two cores, in about a minute):

    [worker 0] images: Fashion-MNIST in /usr/share/datasets/fashion-mnist
    [worker 0] 2 workers, 468 steps of 128 images an epoch, 64 on each worker
    [worker 0] Epoch 1/3
    ...
    [worker 0] test accuracy: 0.90
    [worker 0] images/s in all: (depends on the machine)
    [worker 0] share of a step spent in communication: (depends on the machine)
    [worker 0] bytes sent a step: 1,688,000, and 33 times fewer with --compression topk

Without `tfdist run` (no TF_CONFIG) the same script trains alone. The line that makes it distributed
is marked below.
"""

from __future__ import annotations

import argparse
import sys
import time

import data
import keras
from common import SEED, batches, positive, training_parser

import tfdist

EVALUATION_BATCH = 500


def parse_arguments() -> argparse.Namespace:
    parser = training_parser(__doc__, epochs=3, batch_size=128, together="in all workers")
    parser.add_argument("--steps-per-epoch", type=positive, help="default: all images once")
    parser.add_argument("--compression", help="fp16, bf16, topk, onebit or powersgd; default: none")
    return parser.parse_args()


def build_model() -> keras.Model:
    """Two convolutions that halve the image, one hidden layer: 422,000 weights."""
    return keras.Sequential(
        [
            keras.Input((data.SIDE, data.SIDE)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Reshape((data.SIDE, data.SIDE, 1)),
            keras.layers.Conv2D(32, 5, strides=2, padding="same", activation="relu"),
            keras.layers.Conv2D(64, 3, strides=2, padding="same", activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(data.CLASSES),
        ]
    )


class Clock(keras.callbacks.Callback):
    """Times the steps after the first one, which traces the model.

    Attributes:
      seconds: wall time of the timed steps.
      steps: their number.
      communicating: the part of `seconds` with at least one pending collective.
      bytes_sent: bytes that this worker sent in them.
    """

    def __init__(self, strategy: tfdist.MultiWorkerMirroredStrategy) -> None:
        super().__init__()
        self.seconds, self.communicating, self.bytes_sent, self.steps = 0.0, 0.0, 0, -1
        self._strategy = strategy

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self.steps += 1
        if self.steps == 0:
            self._began = time.perf_counter()
            self._before = self._strategy.communication_stats()

    def on_train_end(self, logs: dict | None = None) -> None:
        self.seconds = time.perf_counter() - self._began
        now = self._strategy.communication_stats()
        self.communicating = now.busy_seconds - self._before.busy_seconds
        self.bytes_sent = now.bytes_sent - self._before.bytes_sent


def main() -> None:
    arguments = parse_arguments()
    keras.utils.set_random_seed(SEED)

    strategy = tfdist.MultiWorkerMirroredStrategy(  # was: tf.distribute.Multi...
        communication_options=tfdist.CommunicationOptions(compression=arguments.compression)
    )

    cluster = tfdist.Cluster.from_environment()
    images = data.load_fashion_mnist(announce=cluster.is_chief)
    train_images = images.train_images[: arguments.limit]
    train_labels = images.train_labels[: arguments.limit]
    size = min(arguments.batch_size, len(train_images))
    steps = arguments.steps_per_epoch or len(train_images) // size

    with strategy.scope():
        model = build_model()
        model.compile(
            optimizer=keras.optimizers.Adam(
                keras.optimizers.schedules.CosineDecay(0.003, arguments.epochs * steps)
            ),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )

    if cluster.is_chief:
        workers = strategy.num_replicas_in_sync
        print(
            f"{workers} worker{'s' * (workers > 1)}, {steps} steps of {size} images an epoch, "
            f"{size / workers:g} on each worker",
            flush=True,
        )
    # A progress bar needs a terminal; in a file one line per epoch is easier to read.
    chief_verbosity = 1 if sys.stdout.isatty() else 2
    clock = Clock(strategy)
    model.fit(
        batches(train_images, train_labels, size, training=True),
        epochs=arguments.epochs,
        steps_per_epoch=steps,
        callbacks=[clock],
        shuffle=False,  # the dataset shuffles
        verbose=chief_verbosity if cluster.is_chief else 0,
    )
    # Every worker takes part: each evaluates its share of the images, and all get the result.
    _, accuracy = model.evaluate(
        batches(images.test_images, images.test_labels, EVALUATION_BATCH, training=False),
        verbose=0,
    )

    if cluster.is_chief:
        print(f"test accuracy: {accuracy:.4f} ({images.source})")
        if clock.steps:
            print(f"images/s in all: {clock.steps * size / clock.seconds:.0f}")
            share = clock.communicating / clock.seconds
            print(f"share of a step spent in communication: {share:.1%}")
            print(f"bytes sent a step: {clock.bytes_sent / clock.steps:,.0f}")


if __name__ == "__main__":
    main()
