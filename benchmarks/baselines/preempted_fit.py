"""A worker that trains until it is told to end, for benchmarks/preemption.py.

Arguments: the directory of the backup, and the megabytes of the weights.
"""

from __future__ import annotations

import sys
import time

import keras
import numpy as np
import tensorflow as tf

import tfdist

LAYERS = 4
WARM_UP, TIMED = 3, 10


class StepTimes(keras.callbacks.Callback):
    """Prints the mean seconds of some steps, which starts the measurement."""

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """After each step."""
        if batch == WARM_UP:
            self._began = time.monotonic()
        if batch == WARM_UP + TIMED:
            mean = (time.monotonic() - self._began) / TIMED
            print(f"steps of {mean:.4f} s", flush=True)


def main(folder: str, megabytes: int) -> None:
    """Trains."""
    width = max(1, round((megabytes * 2**20 / 4 / LAYERS) ** 0.5))
    with tfdist.MultiWorkerMirroredStrategy().scope():
        layers = [keras.layers.Dense(width, activation="relu") for _ in range(LAYERS)]
        model = keras.Sequential([keras.layers.Input((width,)), *layers])
        model.compile(optimizer="adam", loss="mse")
    x = np.random.default_rng(0).normal(size=(64, width)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x)).repeat().batch(16)
    callbacks = [keras.callbacks.BackupAndRestore(folder), StepTimes()]
    model.fit(data, steps_per_epoch=10**6, verbose=0, callbacks=callbacks)


main(sys.argv[1], int(sys.argv[2]))
