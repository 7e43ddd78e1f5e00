"""Workers that train on a pipeline with a slow map, for benchmarks/input_maps.py.

An object is made, and its methods are called, in the process of one worker.
"""

from __future__ import annotations

import contextlib
import os
import time

BATCH = 32


class MappedFitter:
    """A small model, and rows that a sleeping map prepares.

    Args:
      tf_config: of a worker; "{}" is one process without a strategy.
      rows: of an epoch.
      seconds: that the map takes for each row.
      is_cut: whether each worker maps its rows alone; else it maps whole batches.
    """

    def __init__(self, tf_config: str, rows: int, seconds: float, is_cut: bool) -> None:
        os.environ["TF_CONFIG"] = tf_config
        import keras
        import numpy as np
        import tensorflow as tf

        import tfdist

        def mapped(row):
            time.sleep(seconds)
            return row * np.float32(0.5)

        def of_row(row, label):
            (row,) = tf.numpy_function(mapped, [row], [tf.float32])
            return tf.ensure_shape(row, [8]), label

        is_worker = tf_config != "{}"
        keras.utils.set_random_seed(1)
        features = np.random.default_rng(1).normal(size=(rows, 8)).astype("float32")
        source = tf.data.Dataset.from_tensor_slices((features, features.sum(axis=1)))
        data = source.shuffle(rows, seed=1).map(of_row).batch(BATCH)
        if not is_cut:
            # Before it no map can be divided.
            whole = tf.data.experimental.assert_cardinality(-(-rows // BATCH))
            data = data.unbatch().batch(BATCH).apply(whole)
        self._data = data.prefetch(tf.data.AUTOTUNE)
        scope = tfdist.MultiWorkerMirroredStrategy().scope() if is_worker else None
        with scope or contextlib.nullcontext():
            self._model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
            self._model.compile("sgd", "mse")
        self._callback = keras.callbacks.LambdaCallback

    def fit(self, epochs: int) -> list[float]:
        """Seconds of each epoch but the first, in which the step is traced."""
        ends: list[float] = []
        note = self._callback(on_epoch_end=lambda epoch, logs: ends.append(time.perf_counter()))
        self._model.fit(self._data, epochs=epochs + 1, callbacks=[note], verbose=0)
        return [end - begin for begin, end in zip(ends, ends[1:], strict=False)]

    def weights(self) -> list[float]:
        """The model's weights, flattened."""
        return [float(x) for w in self._model.get_weights() for x in w.ravel()]
