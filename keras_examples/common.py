"""Batches, devices and arguments of several examples."""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfdist

SEED = 1


class KillRankZero(keras.callbacks.Callback):
    """Kills this process if it is rank 0 after one of some steps, once for each of them.

    Args:
      steps: of the model's optimizer.
      folder: a file in it says that a process was killed.
    """

    def __init__(self, steps: list[int], folder: Path) -> None:
        super().__init__()
        self._steps, self._folder = steps, folder

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        done = int(self.model.optimizer.iterations.numpy())
        if done not in self._steps or tfdist.rank() != 0:
            return
        mark = self._folder / f"killed-{self.model.name}-{done}"
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def positive(text: str) -> int:
    """Reads a command-line argument that is a whole number of at least 1.

    Raises:
      argparse.ArgumentTypeError: it is not.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, received {text}")
    return int(text)


def training_parser(
    description: str, epochs: int, batch_size: int, together: str
) -> argparse.ArgumentParser:
    """Makes a parser of the arguments of all examples on Fashion-MNIST.

    Args:
      description: the example's docstring; its first line is shown.
      epochs: default of `--epochs`.
      batch_size: default of `--batch-size`.
      together: the owner of a batch, such as "in all workers".
    """
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--epochs", type=positive, default=epochs)
    parser.add_argument(
        "--batch-size", type=positive, default=batch_size, help=f"images a step, {together}"
    )
    parser.add_argument("--limit", type=positive, help="use only the first LIMIT training images")
    return parser


def local_devices(count: int | None = None) -> list[str]:
    """Devices of this machine for training: GPUs if it has any, else logical CPU devices.

    Call it before TensorFlow runs its first op, which initializes the devices.

    Args:
      count: their number; `None` means all GPUs, or 2 logical CPU devices.

    Returns:
      Names such as `["CPU:0", "CPU:1"]`.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        return [f"GPU:{i}" for i in range(count or len(gpus))]
    count = count or 2
    # They share the machine's cores: they are for demonstration and do not train faster.
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * count,
    )
    return [f"CPU:{i}" for i in range(count)]


def wait_for(optimizer: keras.Optimizer, steps: int, seconds: float = 60.0) -> None:
    """Waits until all workers together have made `steps` steps, at most `seconds`."""
    deadline = time.monotonic() + seconds
    while int(optimizer.iterations.numpy()) < steps and time.monotonic() < deadline:
        time.sleep(0.05)


def area_under_curve(labels: np.ndarray, scores: np.ndarray) -> float:
    """The probability that an example of label 1 scores higher than one of label 0 (AUC).

    Args:
      labels: shape (n,), 0 or 1; both must occur.
      scores: shape (n,); a pair of equal scores counts half.
    """
    _, positions, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[positions]
    ones = labels > 0
    least = ones.sum() * (ones.sum() + 1) / 2
    return float((ranks[ones].sum() - least) / (ones.sum() * (~ones).sum()))


def batches(images: np.ndarray, labels: np.ndarray, size: int, training: bool) -> tf.data.Dataset:
    """Global batches of `size` images; Keras gives each replica its part.

    Args:
      images: an image, or its features, in each row.
      labels: uint8, one for each row.
      size: rows in a batch.
      training: whether to shuffle and repeat.
    """
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    if training:
        # The same order on all workers (SEED), so that their parts of a batch do not overlap.
        dataset = dataset.shuffle(len(images), seed=SEED).repeat()
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return dataset.batch(size).prefetch(2).with_options(options)
