"""Workers that train the same model, with one front end and strategy each, in their own process."""

from __future__ import annotations

import hashlib
import os
import statistics
import time
from typing import Any

import numpy as np
from contenders.processes import Remote

from tfdist.cluster import Cluster
from tfdist.ports import free_ports

WORKERS = 2
PER_WORKER = 32  # examples of a batch
WIDTHS = (1040,) * 12  # 13.0 M parameters, 4.3 MB a layer
MODELS = ("dense", "cnn")
TITLES = {"dense": "dense network", "cnn": "small CNN"}


class TrainingRank:
    """One worker, or a process that trains alone.

    Args:
      front_end: "keras" or "tf_keras".
      strategy: "tfdist", "stock" or "none".
      tf_config: the job, for a strategy.
    """

    def __init__(self, front_end: str, strategy: str, tf_config: str) -> None:
        os.environ.update(TF_CONFIG=tf_config, TF_CPP_MIN_LOG_LEVEL="2")
        if front_end == "tf_keras":
            os.environ["TF_USE_LEGACY_KERAS"] = "1"
        import keras
        import tensorflow as tf

        if front_end == "tf_keras":
            import tf_keras as keras
        self._keras = keras
        self._workers = WORKERS if strategy != "none" else 1
        self._strategy_name = strategy
        self._models: dict[tuple[str, int], Any] = {}
        self._strategies: dict[int, Any] = {}
        self._strategy(0)  # before anything runs: a stock strategy starts a server
        tf.get_logger().setLevel("ERROR")

    def add(self, kind: str, bytes_per_pack: int = 0) -> int:
        """Makes a model; returns its number of parameters."""
        self._keras.utils.set_random_seed(1)
        strategy = self._strategy(bytes_per_pack)
        if strategy is None:
            model = self._make(kind)
        else:
            with strategy.scope():
                model = self._make(kind)
        self._models[kind, bytes_per_pack] = model
        return model.count_params()

    def train(self, kind: str, bytes_per_pack: int, steps: int) -> float:
        """Median seconds of a step of `fit`, of which the first one is not counted."""
        clock = _make_clock(self._keras)
        self._models[kind, bytes_per_pack].fit(
            self._batches(kind, steps + 1), epochs=1, verbose=0, callbacks=[clock]
        )
        return statistics.median(clock.seconds[1:])

    def state(self, kind: str, bytes_per_pack: int = 0) -> tuple[float, str]:
        """The loss of the whole batch, and a digest of all weights."""
        model = self._models[kind, bytes_per_pack]
        loss = model.evaluate(self._batches(kind, 1), verbose=0)
        digest = hashlib.sha256()
        for weight in model.get_weights():
            digest.update(weight.tobytes())
        return float(loss), digest.hexdigest()

    def _strategy(self, bytes_per_pack: int) -> Any:
        if self._strategy_name == "none":
            return None
        if bytes_per_pack not in self._strategies:
            if self._strategy_name == "stock":
                import tensorflow as tf

                options = tf.distribute.experimental.CommunicationOptions(
                    implementation="RING", bytes_per_pack=bytes_per_pack
                )
                kind = tf.distribute.MultiWorkerMirroredStrategy
            else:
                import tfdist

                options = tfdist.CommunicationOptions(bytes_per_pack=bytes_per_pack)
                kind = tfdist.MultiWorkerMirroredStrategy
            self._strategies[bytes_per_pack] = kind(communication_options=options)
        return self._strategies[bytes_per_pack]

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
        """The same batch `count` times: that of all workers together, of which each has a share."""
        import tensorflow as tf

        random = np.random.default_rng(0)
        shape = (1024,) if kind == "dense" else (28, 28, 1)
        features = random.normal(size=(PER_WORKER * self._workers, *shape)).astype("float32")
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


def tf_configs() -> list[str]:
    """TF_CONFIG of each of the workers of a new job on this machine."""
    addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(WORKERS))
    return [Cluster(workers=addresses, task_index=rank).tf_config() for rank in range(WORKERS)]


def together(ranks: list[Remote], method: str, *arguments: Any) -> list:
    """Calls a method on all ranks at the same time."""
    for rank in ranks:
        rank.begin(method, *arguments)
    return [rank.end() for rank in ranks]
