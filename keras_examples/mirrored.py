"""A small convolutional network on Fashion-MNIST, trained by several devices of one machine.

    python keras_examples/mirrored.py --output /tmp/mirrored.keras

prints (on two cores as two devices, in about half a minute):

    images: Fashion-MNIST in /usr/share/datasets/fashion-mnist
    2 devices (CPU:0, CPU:1), 468 steps of 128 images an epoch, 64 on each device
    Epoch 1/2
    ...
    test accuracy: 0.89
    saved /tmp/mirrored.keras; read back on one device, it agrees on 99.9% of the test images

It uses the machine's GPUs if there are any. The line that makes it use several devices is marked
below.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import data
import keras
import numpy as np
from common import SEED, batches, local_devices, positive, training_parser

import tfdist

EVALUATION_BATCH = 500


def parse_arguments() -> argparse.Namespace:
    parser = training_parser(__doc__, epochs=2, batch_size=128, together="on all devices")
    parser.add_argument(
        "--devices", type=positive, help="default: all GPUs, or 2 logical CPU devices"
    )
    parser.add_argument("--output", type=Path, help="where to save the model, such as model.keras")
    return parser.parse_args()


def build_model() -> keras.Model:
    """Two convolutions that halve the image, each normalized over the batch: 21,000 weights.

    Every replica normalizes with the statistics of its own part of a batch, as without a strategy;
    `BatchNormalization(synchronized=True)` would use the statistics of the whole batch.
    """
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((data.SIDE, data.SIDE)),
            layers.Rescaling(1 / 255),
            layers.Reshape((data.SIDE, data.SIDE, 1)),
            layers.Conv2D(16, 5, strides=2, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.Conv2D(32, 3, strides=2, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dense(data.CLASSES),
        ]
    )


def agreement(one: keras.Model, other: keras.Model, images: np.ndarray) -> float:
    """The share of `images`, uint8 (n, 28, 28), to which two models give the same class."""
    classes = [
        model.predict(images, batch_size=EVALUATION_BATCH, verbose=0).argmax(axis=1)
        for model in (one, other)
    ]
    return float(np.mean(classes[0] == classes[1]))


def main() -> None:
    arguments = parse_arguments()
    devices = local_devices(arguments.devices)
    keras.utils.set_random_seed(SEED)

    strategy = tfdist.MirroredStrategy(devices)  # was: tf.distribute.MirroredStrategy(devices)

    images = data.load_fashion_mnist()
    train_images = images.train_images[: arguments.limit]
    train_labels = images.train_labels[: arguments.limit]
    size = min(arguments.batch_size, len(train_images))
    steps = len(train_images) // size

    with strategy.scope():
        model = build_model()
        model.compile(
            optimizer=keras.optimizers.Adam(
                keras.optimizers.schedules.CosineDecay(0.01, arguments.epochs * steps)
            ),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )

    replicas = strategy.num_replicas_in_sync
    print(
        f"{replicas} device{'s' * (replicas > 1)} ({', '.join(devices)}), {steps} steps of {size} "
        f"images an epoch, {size / replicas:g} on each device",
        flush=True,
    )
    model.fit(
        batches(train_images, train_labels, size, training=True),
        epochs=arguments.epochs,
        steps_per_epoch=steps,
        shuffle=False,  # the dataset shuffles
        verbose=1 if sys.stdout.isatty() else 2,
    )
    _, accuracy = model.evaluate(
        batches(images.test_images, images.test_labels, EVALUATION_BATCH, training=False),
        verbose=0,
    )
    print(f"test accuracy: {accuracy:.4f} ({images.source})")

    if arguments.output:
        model.save(arguments.output)
        # Loaded outside the strategy's scope: an ordinary model on one device. It normalizes with
        # the mean of the replicas' statistics; above each replica used its own.
        single = keras.models.load_model(arguments.output)
        share = agreement(model, single, images.test_images)
        print(
            f"saved {arguments.output}; read back on one device, it agrees on {share:.1%} of the "
            "test images"
        )


if __name__ == "__main__":
    main()
