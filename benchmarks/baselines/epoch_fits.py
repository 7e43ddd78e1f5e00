"""Workers that train tiny epochs with `fit`, for benchmarks/epochs.py.

An object is made, and its methods are called, in the process of one worker.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

ROWS, BATCH = 64, 32
DEVICES = 2


class Fitter:
    """A small model and its data, under a strategy.

    Args:
      kind: "plain" without a strategy, "worker" of a `tfdist.MultiWorkerMirroredStrategy`,
        "devices" of a `tfdist.MirroredStrategy`, "stock devices" of TensorFlow's own.
      tf_config: of a worker.
    """

    def __init__(self, kind: str, tf_config: str = "{}") -> None:
        os.environ["TF_CONFIG"] = tf_config
        import keras
        import numpy as np
        import tensorflow as tf

        import tfdist

        devices = [f"CPU:{i}" for i in range(DEVICES)]
        if kind.endswith("devices"):
            tf.config.set_logical_device_configuration(
                tf.config.list_physical_devices("CPU")[0],
                [tf.config.LogicalDeviceConfiguration()] * DEVICES,
            )
        scopes: dict[str, Any] = {
            "plain": contextlib.nullcontext,
            "worker": lambda: tfdist.MultiWorkerMirroredStrategy().scope(),
            "devices": lambda: tfdist.MirroredStrategy(devices).scope(),
            "stock devices": lambda: tf.distribute.MirroredStrategy(devices).scope(),
        }
        keras.utils.set_random_seed(1)
        features = np.random.default_rng(1).normal(size=(ROWS, 8)).astype("float32")
        self._data = (features, features.sum(axis=1, keepdims=True))
        with scopes[kind]():
            self._model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
            self._model.compile("sgd", "mse")
        self._callback = keras.callbacks.LambdaCallback

    def fit(self, epochs: int) -> list[float]:
        """Seconds of each epoch but the first, in which the step is traced."""
        ends = []
        note = self._callback(on_epoch_end=lambda epoch, logs: ends.append(time.perf_counter()))
        self._model.fit(
            *self._data,
            batch_size=BATCH,
            epochs=epochs + 1,
            shuffle=False,
            callbacks=[note],
            verbose=0,
        )
        return [end - begin for begin, end in zip(ends, ends[1:], strict=False)]

    def weights(self) -> list[float]:
        """The model's weights, flattened."""
        return [float(x) for w in self._model.get_weights() for x in w.ravel()]
