"""Images in TFRecord files, a pipeline that decodes and augments them, and a model of them."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

SIDE, CLASSES = 16, 4
FEATURES = {
    "number": tf.io.FixedLenFeature([], tf.int64),
    "image": tf.io.FixedLenFeature([], tf.string),
    "label": tf.io.FixedLenFeature([], tf.int64),
}


def write_images(folder: Path, images: int, files: int = 2) -> list[str]:
    """Writes JPEGs with their numbers and labels; returns the paths of the files."""
    random = np.random.default_rng(5)
    paths = [str(folder / f"images-{file}.tfrecord") for file in range(files)]
    writers = [tf.io.TFRecordWriter(path) for path in paths]
    for number in range(images):
        label = number % CLASSES
        pixels = random.integers(0, 120, (SIDE, SIDE, 3)) + 30 * label
        jpeg = tf.io.encode_jpeg(pixels.astype(np.uint8), quality=95).numpy()
        record = tf.train.Example(
            features=tf.train.Features(
                feature={
                    "number": _integer(number),
                    "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[jpeg])),
                    "label": _integer(label),
                }
            )
        )
        writers[number % files].write(record.SerializeToString())
    for writer in writers:
        writer.close()
    return paths


def _integer(value: int) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))


def decode_and_augment(record: tf.Tensor, at: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns an image float32[SIDE, SIDE, 3], changed by its number and place; its label."""
    parsed = tf.io.parse_single_example(record, FEATURES)
    image = tf.image.decode_jpeg(parsed["image"], channels=3)
    image = tf.cast(tf.ensure_shape(image, (SIDE, SIDE, 3)), tf.float32) / 255
    seed = tf.stack([parsed["number"], at])
    image = tf.image.stateless_random_flip_left_right(image, seed)
    image = tf.image.stateless_random_brightness(image, 0.2, seed)
    padded = tf.image.resize_with_crop_or_pad(image, SIDE + 4, SIDE + 4)
    return tf.image.stateless_random_crop(padded, (SIDE, SIDE, 3), seed), parsed["label"]


def image_batches(paths: list[str], batch: int, images: int | None = None) -> tf.data.Dataset:
    """Batches of augmented images, the last one of an epoch short.

    Args:
      paths: of the files, which are interleaved.
      batch: images of all workers together.
      images: their number, if the dataset is to know it.
    """
    files = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths), seed=1)
    records = files.interleave(tf.data.TFRecordDataset, cycle_length=2, num_parallel_calls=2)
    if images is not None:
        records = records.apply(tf.data.experimental.assert_cardinality(images))
    # A place depends on the order of the files: an image is changed otherwise in another epoch.
    placed = tf.data.Dataset.zip((records, tf.data.Dataset.counter())).shuffle(16, seed=2)
    mapped = placed.map(decode_and_augment, num_parallel_calls=tf.data.AUTOTUNE)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return mapped.batch(batch).prefetch(tf.data.AUTOTUNE).with_options(options)


def image_model() -> keras.Model:
    """A small convolutional classifier, trained with momentum."""
    model = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 3)),
            keras.layers.Conv2D(4, 3, strides=2, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(CLASSES),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=["accuracy"])
    return model
