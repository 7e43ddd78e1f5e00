"""Workers that read images with tf.data, for benchmarks/input_images.py."""

from __future__ import annotations

import os
import time

import numpy as np
from baselines.images import BATCH, CROP, NUMBER, SIZE, corner_of, is_flipped


def write_images(path: str, count: int) -> None:
    """Writes a TFRecord file of JPEGs of smooth noise, as large as photographs of their size."""
    import tensorflow as tf

    random = np.random.default_rng(1)
    with tf.io.TFRecordWriter(path) as writer:
        for number in range(count):
            coarse = random.integers(0, 256, (16, 16, 3))
            smooth = tf.image.resize(coarse, (SIZE, SIZE), "bicubic")
            noisy = smooth + random.normal(0, 8, (SIZE, SIZE, 3))
            image = tf.cast(tf.clip_by_value(noisy, 0, 255), tf.uint8)
            writer.write(NUMBER.pack(number) + tf.io.encode_jpeg(image, quality=90).numpy())


class ImageReader:
    """Decodes, crops and flips the images of its share, on one processor.

    Args:
      tf_config: of a worker; "{}" is one process without a strategy.
      path: the TFRecord file.
      count: its records.
      processor: the number of the processor.
      is_cut: whether each worker maps its rows alone; else it maps whole batches.
    """

    def __init__(self, tf_config: str, path: str, count: int, processor: int, is_cut: bool) -> None:
        os.environ["TF_CONFIG"] = tf_config
        os.sched_setaffinity(0, {processor})
        import tensorflow as tf

        import tfdist

        def of_record(record):
            number = tf.io.decode_raw(tf.strings.substr(record, 0, NUMBER.size), tf.int64)[0]
            jpeg = tf.strings.substr(record, NUMBER.size, -1)
            image = tf.io.decode_jpeg(jpeg, channels=3, dct_method="INTEGER_ACCURATE")
            top, left = corner_of(number)
            image = image[top : top + CROP, left : left + CROP]
            image = tf.where(is_flipped(number), image[:, ::-1], image)
            image = tf.ensure_shape(tf.cast(image, tf.float32), [CROP, CROP, 3])
            return image / 255.0, number % 10

        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = (
            tf.data.experimental.AutoShardPolicy.DATA
        )
        data = tf.data.TFRecordDataset(path).shuffle(count, seed=1).map(of_record).batch(BATCH)
        if not is_cut:
            data = data.unbatch().batch(BATCH)  # before it no map can be divided
        data = data.prefetch(2).with_options(options)
        self._own = lambda images: images
        if tf_config != "{}":
            strategy = tfdist.MultiWorkerMirroredStrategy()
            data = strategy.experimental_distribute_dataset(data)
            self._own = lambda images: strategy.experimental_local_results(images)[0]
        self._data = data

    def read(self, epochs: int) -> list[float]:
        """Seconds of each epoch."""
        seconds = []
        for _ in range(epochs):
            begin = time.perf_counter()
            for _ in self._data:
                pass
            seconds.append(time.perf_counter() - begin)
        return seconds

    def total(self) -> tuple[int, int]:
        """The images of an epoch, and the sum of their values in steps of 1/255."""
        count = total = 0
        for distributed, _ in self._data:
            images = self._own(distributed)
            count += len(images)
            total += round(float(np.sum(images.numpy(), dtype=np.float64)) * 255)
        return count, total
