"""Images are decoded and augmented by data workers, and a small network trains on them.

    tfdist run --workers 2 --data-workers 2 keras_examples/data_service.py

prints (on two cores, in about a minute):

    [worker 0] images: Fashion-MNIST in /usr/share/datasets/fashion-mnist
    [worker 0] Epoch 1/2
    ...
    [worker 0] test accuracy: 0.81; 6,616 images/s in all, 2 data workers

The chief first writes the images as PNGs into 16 TFRecord files, as a dataset is usually stored.
The data workers divide the files among each other, decode, flip and shift the images, and make the
batches; the training workers only take them. Without `--data-workers` each training worker does all
of this itself; on two cores, none of which is left for data workers, that is as fast (6,436
images/s):

    tfdist run --workers 2 keras_examples/data_service.py
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import data
import keras
import numpy as np
import tensorflow as tf
from common import SEED, training_parser

import tfdist

FILES = 16
FEATURES = {
    "image": tf.io.FixedLenFeature([], tf.string),
    "label": tf.io.FixedLenFeature([], tf.int64),
}


def write_records(folder: Path, images: np.ndarray, labels: np.ndarray) -> list[str]:
    """Writes PNGs and their labels into FILES files; returns the files' paths."""
    paths = [str(folder / f"images-{number:02d}.tfrecord") for number in range(FILES)]
    for number, path in enumerate(paths):
        with tf.io.TFRecordWriter(path) as writer:
            for image, label in zip(images[number::FILES], labels[number::FILES], strict=True):
                png = tf.io.encode_png(image[..., np.newaxis]).numpy()
                features = {
                    "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[png])),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
                }
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())
    return paths


def decode_and_augment(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns an image, float32 of shape (28, 28, 1), flipped and shifted at random; its label."""
    example = tf.io.parse_single_example(record, FEATURES)
    image = tf.io.decode_png(example["image"], channels=1)
    image = tf.ensure_shape(image, (data.SIDE, data.SIDE, 1))
    image = tf.image.random_flip_left_right(tf.cast(image, tf.float32) / 255)
    padded = tf.image.resize_with_crop_or_pad(image, data.SIDE + 4, data.SIDE + 4)
    return tf.image.random_crop(padded, (data.SIDE, data.SIDE, 1)), example["label"]


def pipeline(paths: list[str], batch_size: int, seed: int | None) -> tf.data.Dataset:
    """Batches of the job: Keras gives each worker its part."""
    files = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths), seed=seed)
    records = files.interleave(
        tf.data.TFRecordDataset, cycle_length=2, num_parallel_calls=2, deterministic=True
    )
    return records.shuffle(2000, seed=seed).map(decode_and_augment).batch(batch_size)


def build_model() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((data.SIDE, data.SIDE, 1)),
            keras.layers.Flatten(),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(data.CLASSES),
        ]
    )


def main() -> None:
    parser = training_parser(__doc__, epochs=2, batch_size=128, together="in all workers")
    arguments = parser.parse_args()

    strategy = tfdist.MultiWorkerMirroredStrategy()  # a data task serves here until the job ends

    images = data.load_fashion_mnist(announce=strategy.is_chief)
    train_images = images.train_images[: arguments.limit]
    folder = None
    if strategy.is_chief:
        folder = tempfile.TemporaryDirectory(prefix="images-")
        paths = write_records(
            Path(folder.name), train_images, images.train_labels[: arguments.limit]
        )
    paths = tfdist.broadcast_object(paths if strategy.is_chief else None)

    data_workers = len(tfdist.Cluster.from_environment().data_workers)
    if data_workers:
        # Without a seed: a data worker would begin each epoch with the same one.
        dataset = tfdist.data.distribute(pipeline(paths, arguments.batch_size, seed=None))
    else:
        # Each worker takes its part of a batch that must be the same on all.
        dataset = pipeline(paths, arguments.batch_size, SEED)

    with strategy.scope():
        model = build_model()
        model.compile(
            optimizer=keras.optimizers.Adam(0.001),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    start = time.perf_counter()
    model.fit(
        dataset.prefetch(2),
        epochs=arguments.epochs,
        shuffle=False,  # the dataset shuffles
        verbose=(1 if sys.stdout.isatty() else 2) if strategy.is_chief else 0,
    )
    rate = arguments.epochs * len(train_images) / (time.perf_counter() - start)
    test = images.test_images[..., np.newaxis] / np.float32(255)
    _, accuracy = model.evaluate(test, images.test_labels, batch_size=500, verbose=0)
    if strategy.is_chief:
        by = f"{data_workers} data workers" if data_workers else "no data workers"
        print(f"test accuracy: {accuracy:.2f}; {rate:,.0f} images/s in all, {by}")


if __name__ == "__main__":
    main()
