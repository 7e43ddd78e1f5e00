"""Each worker decodes and augments its own images, and the weights are one process's.

    tfdist run --workers 2 keras_examples/shared_maps.py

prints:

    [worker 0] images: Fashion-MNIST in /usr/share/datasets/fashion-mnist
    [worker 0] Epoch 1/2
    ...
    [worker 0] test accuracy: 0.83; sum of the weights: 27.43
    [worker 0] decoded 60,000 of 120,000 images
    [worker 1] decoded 60,000 of 120,000 images

In one process all images are decoded there; the other line is the same:

    python keras_examples/shared_maps.py

The chief first writes the images as PNGs into a TFRecord file. The pipeline is an ordinary one. An
image is flipped and shifted by random numbers that belong to its position in the file, so that it
does not matter which worker does it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import data
import keras
import numpy as np
import tensorflow as tf
from common import SEED, training_parser

import tfdist

DECODED = tf.Variable(0, dtype=tf.int64)


def write_records(path: Path, images: np.ndarray) -> None:
    """Writes PNGs into a TFRecord file."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for image in images:
            writer.write(tf.io.encode_png(image[..., np.newaxis]).numpy())


def decode_and_augment(number: tf.Tensor, png: tf.Tensor) -> tf.Tensor:
    """Returns an image, float32 of shape (28, 28, 1), flipped and shifted by its number."""
    DECODED.assign_add(1)
    image = tf.ensure_shape(tf.io.decode_png(png, channels=1), (data.SIDE, data.SIDE, 1))
    seed = tf.stack([number, SEED])
    image = tf.image.stateless_random_flip_left_right(tf.cast(image, tf.float32) / 255, seed)
    padded = tf.image.resize_with_crop_or_pad(image, data.SIDE + 4, data.SIDE + 4)
    return tf.image.stateless_random_crop(padded, (data.SIDE, data.SIDE, 1), seed)


def pipeline(path: str, labels: np.ndarray, batch_size: int) -> tf.data.Dataset:
    """Batches of the job: Keras gives each worker its rows."""
    records = tf.data.TFRecordDataset(path).enumerate()
    rows = tf.data.Dataset.zip((records, tf.data.Dataset.from_tensor_slices(labels)))
    rows = rows.apply(tf.data.experimental.assert_cardinality(len(labels)))
    rows = rows.shuffle(len(labels), seed=SEED)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    mapped = rows.map(
        lambda record, label: (decode_and_augment(*record), label), num_parallel_calls=2
    )
    return mapped.batch(batch_size).prefetch(2).with_options(options)


def main() -> None:
    parser = training_parser(__doc__, epochs=2, batch_size=128, together="in all workers")
    arguments = parser.parse_args()
    strategy = tfdist.MultiWorkerMirroredStrategy()
    images = data.load_fashion_mnist(announce=strategy.is_chief)
    labels = images.train_labels[: arguments.limit]
    folder = tempfile.TemporaryDirectory(prefix="images-")
    path = Path(folder.name) / "images.tfrecord"
    if strategy.is_chief:
        write_records(path, images.train_images[: arguments.limit])
    path = tfdist.broadcast_object(str(path) if strategy.is_chief else None)

    keras.utils.set_random_seed(SEED)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((data.SIDE, data.SIDE, 1)),
                keras.layers.Flatten(),
                keras.layers.Dense(256, activation="relu"),
                keras.layers.Dense(data.CLASSES),
            ]
        )
        model.compile(
            optimizer=keras.optimizers.SGD(0.1),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    model.fit(
        pipeline(path, labels, arguments.batch_size),
        epochs=arguments.epochs,
        verbose=(1 if sys.stdout.isatty() else 2) if strategy.is_chief else 0,
    )
    test = images.test_images[..., np.newaxis] / np.float32(255)
    _, accuracy = model.evaluate(test, images.test_labels, batch_size=500, verbose=0)
    total = sum(float(np.sum(weight, dtype=np.float64)) for weight in model.get_weights())
    if strategy.is_chief:
        print(f"test accuracy: {accuracy:.2f}; sum of the weights: {total:.2f}")
    of_all = arguments.epochs * len(labels)
    print(f"decoded {int(DECODED.numpy()):,} of {of_all:,} images")


if __name__ == "__main__":
    main()
