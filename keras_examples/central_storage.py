"""A large table of embeddings, trained by several devices that share one copy of it.

    python keras_examples/central_storage.py

prints (on two cores as two devices, in about half a minute):

    images: Fashion-MNIST in /usr/share/datasets/fashion-mnist
    variables and optimizer slots take 17.6 MB: CPU:0 17.6 MB
    mirrored they would take 35.2 MB: CPU:0 17.6 MB, CPU:1 17.6 MB
    2 devices (CPU:0, CPU:1), 234 steps of 256 images an epoch
    Epoch 1/5
    ...
    test accuracy: 0.84

The model reads an image as 49 words, one for each patch of 4 x 4 pixels, and looks them up
in a table of 65,536 rows. It has many weights and little to compute: a step touches few rows, and
copies of the table on every device would mainly cost memory. Both sizes are counted from existing
variables. It uses the machine's GPUs if there are any; the variables are then on the CPU.
The line that makes it distributed is marked below.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

import data
import keras
import numpy as np
import tensorflow as tf
from common import SEED, batches, local_devices, positive, training_parser

import tfdist

EVALUATION_BATCH = 500
PATCH = 4  # height and width of a patch, in pixels
PATCHES = (data.SIDE // PATCH) ** 2
WORDS = 2 ** (PATCH * PATCH)  # every pixel of a patch is bright or dark
DARK = 64


def parse_arguments() -> argparse.Namespace:
    parser = training_parser(__doc__, epochs=5, batch_size=256, together="on all devices")
    parser.add_argument(
        "--devices", type=positive, help="default: all GPUs, or 2 logical CPU devices"
    )
    parser.add_argument("--width", type=positive, default=32, help="elements of a row of the table")
    return parser.parse_args()


def words_of(images: np.ndarray) -> np.ndarray:
    """Reads images, uint8 (n, 28, 28), as words, int32 (n, 49): one of WORDS for each patch."""
    rows = data.SIDE // PATCH
    patches = (images > DARK).reshape(-1, rows, PATCH, rows, PATCH).swapaxes(2, 3)
    bits = patches.reshape(-1, PATCHES, PATCH * PATCH)
    return (bits * 2 ** np.arange(PATCH * PATCH, dtype=np.int32)).sum(axis=2, dtype=np.int32)


def build_and_compile(width: int) -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((PATCHES,), dtype="int32"),
            keras.layers.Embedding(WORDS, width),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(data.CLASSES),
        ]
    )
    model.compile(
        # Adagrad changes only the rows of a batch, and has a slot as large as the table.
        optimizer=keras.optimizers.Adagrad(0.1),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.optimizer.build(model.trainable_variables)
    return model


def bytes_by_device(strategy: tf.distribute.Strategy, model: keras.Model) -> dict[str, int]:
    """Bytes of the model's and its optimizer's variables on each device."""
    taken = Counter()
    for variable in model.variables + model.optimizer.variables:
        for copy in strategy.experimental_local_results(variable.value):
            device = tf.DeviceSpec.from_string(copy.device)
            name = f"{device.device_type}:{device.device_index}"
            taken[name] += copy.shape.num_elements() * copy.dtype.size
    return taken


def in_words(taken: dict[str, int]) -> str:
    each = ", ".join(f"{device} {size / 1e6:.1f} MB" for device, size in sorted(taken.items()))
    return f"{sum(taken.values()) / 1e6:.1f} MB: {each}"


def main() -> None:
    arguments = parse_arguments()
    devices = local_devices(arguments.devices)
    keras.utils.set_random_seed(SEED)
    images = data.load_fashion_mnist()

    # Only for the comparison; its copies are freed with the model.
    mirrored = tfdist.MirroredStrategy(devices)
    with mirrored.scope():
        bytes_mirrored = bytes_by_device(mirrored, build_and_compile(arguments.width))

    strategy = tfdist.CentralStorageStrategy(devices, "CPU:0")  # was: tf.distribute.experimental...

    with strategy.scope():
        model = build_and_compile(arguments.width)
    print(f"variables and optimizer slots take {in_words(bytes_by_device(strategy, model))}")
    print(f"mirrored they would take {in_words(bytes_mirrored)}")

    train_words = words_of(images.train_images[: arguments.limit])
    train_labels = images.train_labels[: arguments.limit]
    size = min(arguments.batch_size, len(train_words))
    steps = len(train_words) // size
    replicas = strategy.num_replicas_in_sync
    print(
        f"{replicas} device{'s' * (replicas > 1)} ({', '.join(devices)}), "
        f"{steps} steps of {size} images an epoch",
        flush=True,
    )
    model.fit(
        batches(train_words, train_labels, size, training=True),
        epochs=arguments.epochs,
        steps_per_epoch=steps,
        shuffle=False,  # the dataset shuffles
        verbose=1 if sys.stdout.isatty() else 2,
    )
    test_words = words_of(images.test_images)
    _, accuracy = model.evaluate(
        batches(test_words, images.test_labels, EVALUATION_BATCH, training=False), verbose=0
    )
    print(f"test accuracy: {accuracy:.4f} ({images.source})")


if __name__ == "__main__":
    main()
