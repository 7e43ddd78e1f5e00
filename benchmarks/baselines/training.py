"""Workers that train models, each in its own process, for bucket_size.py and overlap.py."""

from __future__ import annotations

import hashlib
import os
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfdist.config.cluster import Cluster
from tfdist.launch.ports import free_ports

WORKERS = 2
PER_WORKER = 32  # examples of a batch
WIDTHS = (1040,) * 12  # 13.0 M parameters, 4.3 MB a layer
MODELS = ("dense", "cnn")
TITLES = {"dense": "dense network", "cnn": "small CNN"}


class TrainingRank:
    """A worker that trains models with Keras 3 under `tfdist.MultiWorkerMirroredStrategy`.

    Args:
      tf_config: the job.
    """

    def __init__(self, tf_config: str) -> None:
        os.environ.update(TF_CONFIG=tf_config, TF_CPP_MIN_LOG_LEVEL="2")
        import keras

        import tfdist

        self._keras, self._tfdist = keras, tfdist
        self._models: dict[tuple[str, int | str], Any] = {}

    def add(self, kind: str, bytes_per_pack: int | str = 0) -> int:
        """Makes a model with buckets of this size; returns its number of parameters."""
        self._keras.utils.set_random_seed(1)
        options = self._tfdist.CommunicationOptions(bytes_per_pack=bytes_per_pack)
        strategy = self._tfdist.MultiWorkerMirroredStrategy(communication_options=options)
        with strategy.scope():
            model = self._models[kind, bytes_per_pack] = self._make(kind)
        return model.count_params()

    def train(self, kind: str, bytes_per_pack: int | str, steps: int) -> float:
        """Median seconds of a step of `fit`, without the first one."""
        clock = _make_clock(self._keras)
        self._models[kind, bytes_per_pack].fit(
            self._batches(kind, steps + 1), epochs=1, verbose=0, callbacks=[clock]
        )
        return statistics.median(clock.seconds[1:])

    def digest(self, kind: str, bytes_per_pack: int | str = 0) -> str:
        """A hash of all weights."""
        digest = hashlib.sha256()
        for weight in self._models[kind, bytes_per_pack].get_weights():
            digest.update(weight.tobytes())
        return digest.hexdigest()

    def _make(self, kind: str) -> Any:
        layers = self._keras.layers
        if kind == "dense":
            hidden = [layers.Dense(w, "relu", kernel_initializer="he_normal") for w in WIDTHS]
            model = self._keras.Sequential([layers.Input((1024,)), *hidden, layers.Dense(10)])
        else:
            model = self._keras.Sequential(
                [
                    layers.Input((28, 28, 1)),
                    layers.Conv2D(32, 3, activation="relu"),
                    layers.MaxPooling2D(),
                    layers.Conv2D(64, 3, activation="relu"),
                    layers.MaxPooling2D(),
                    layers.Flatten(),
                    layers.Dense(128, activation="relu"),
                    layers.Dense(10),
                ]
            )
        loss = self._keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(self._keras.optimizers.SGD(0.01), loss)
        return model

    def _batches(self, kind: str, count: int) -> Any:
        """The same global batch `count` times; each worker gets a share of it."""
        import tensorflow as tf

        random = np.random.default_rng(0)
        shape = (1024,) if kind == "dense" else (28, 28, 1)
        features = random.normal(size=(PER_WORKER * WORKERS, *shape)).astype("float32")
        labels = random.integers(0, 10, len(features)).astype("int32")
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = (
            tf.data.experimental.AutoShardPolicy.DATA
        )
        batches = tf.data.Dataset.from_tensor_slices((features, labels)).batch(len(features))
        return batches.cache().repeat(count).prefetch(2).with_options(options)


def _make_clock(library: Any) -> Any:
    class Clock(library.callbacks.Callback):
        """Seconds of each step of `fit`."""

        def on_train_begin(self, logs=None):
            self.seconds = []

        def on_train_batch_begin(self, batch, logs=None):
            self._start = time.perf_counter()

        def on_train_batch_end(self, batch, logs=None):
            self.seconds.append(time.perf_counter() - self._start)

    return Clock()


def tf_configs(addresses: Sequence[str] = ()) -> list[str]:
    """TF_CONFIG of each worker of a new job, on this machine unless there are addresses."""
    workers = tuple(addresses or (f"127.0.0.1:{port}" for port in free_ports(WORKERS)))
    return [Cluster(workers=workers, task_index=rank).tf_config() for rank in range(WORKERS)]
