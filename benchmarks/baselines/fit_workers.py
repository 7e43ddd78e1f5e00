"""Workers that train with `fit`, for benchmarks/training_step.py.

An object is made, and its methods are called, in the process of one worker.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from baselines.all_reducers import stock_strategy

EXAMPLES = 512
SKIPPED = 2  # warm-up steps of every fit
MODELS = ("dense", "cnn")


def batch_of(model: str, batch: int) -> int:
    """The examples of each worker in a step of a model: fewer of a large one."""
    return max(2, batch // 8) if model == "resnet50" else batch


class Worker:
    """Models and their data under a strategy.

    Args:
      rank: of this process, which is pinned to one processor.
      scale: of the models' widths.
      batch: examples of each worker in a step, as for `batch_of`.
      models: their names: "dense", "cnn" and "resnet50".
    """

    # How the examples are dealt out; OFF: all workers train on the same ones, so that the weights
    # do not depend on the number of workers.
    sharding = "OFF"
    # One number for the seconds of the steps of a `fit`.
    summary: Callable[[Sequence[float]], float] = staticmethod(statistics.median)

    def __init__(self, rank: int, scale: float, batch: int, models: Sequence[str] = MODELS) -> None:
        processors = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {processors[rank % len(processors)]})
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        self._scale, self._batch, self._names = scale, batch, models

    def _prepare(self, strategy: Any, keras: ModuleType) -> None:
        self._strategy, self._keras = strategy, keras
        self._models, self._began = {}, {}
        with strategy.scope():
            for name in self._names:
                make = {"dense": self._dense, "cnn": self._cnn, "resnet50": self._resnet}[name]
                keras.utils.set_random_seed(1)  # all workers make the same model
                model = self._models[name] = make()
                model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
                self._began[name] = model.get_weights()

    def _dense(self):
        """13.0 M parameters."""
        layers, width = self._keras.layers, self._width
        hidden = [layers.Dense(width(units), "relu") for units in (2560, 2560, 1500)]
        return self._keras.Sequential([layers.Input((1024,)), *hidden, layers.Dense(10)])

    def _cnn(self):
        """0.4 M parameters."""
        layers, width = self._keras.layers, self._width
        body: list = []
        for channels in (32, 64):
            body += [layers.Conv2D(width(channels), 3, activation="relu"), layers.MaxPooling2D()]
        body += [layers.Flatten(), layers.Dense(width(256), "relu"), layers.Dense(10)]
        return self._keras.Sequential([layers.Input((28, 28, 1)), *body])

    def _resnet(self):
        """25.6 M parameters."""
        return self._keras.applications.ResNet50(
            weights=None, input_shape=(64, 64, 3), classifier_activation=None
        )

    def _width(self, units: int) -> int:
        return max(1, round(units * self._scale))

    def parameters(self, name: str) -> int:
        return self._models[name].count_params()

    def fit(self, name: str, steps: int) -> float:
        """Seconds of a step, by default their median."""
        import numpy as np
        import tensorflow as tf

        model = self._models[name]
        random = np.random.default_rng(2)
        x = self._inputs(random, (EXAMPLES, *model.input_shape[1:]))
        y = random.integers(10, size=EXAMPLES)
        batch = batch_of(name, self._batch) * self._strategy.num_replicas_in_sync
        dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(batch)
        options = tf.data.Options()
        policy = tf.data.experimental.AutoShardPolicy[self.sharding]
        options.experimental_distribute.auto_shard_policy = policy
        ends: list[float] = []
        clock = self._keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: ends.append(time.perf_counter())
        )
        model.fit(
            dataset.with_options(options),
            steps_per_epoch=steps,
            callbacks=[clock],
            shuffle=False,
            verbose=0,
        )
        took = [after - before for before, after in zip(ends, ends[1:], strict=False)]
        return self.summary(took[SKIPPED:])

    def _inputs(self, random: Any, shape: tuple[int, ...]) -> Any:
        return random.normal(size=shape).astype("float32")

    def progress(self, name: str) -> list[float]:
        """The absolute change of each variable since the start."""
        now = self._models[name].get_weights()
        return [float(abs(a - b).sum()) for a, b in zip(now, self._began[name], strict=True)]


class TfdistWorker(Worker):
    """Keras 3 under `tfdist.MultiWorkerMirroredStrategy`."""

    def __init__(
        self, rank: int, scale: float, batch: int, tf_config: str, models: Sequence[str] = MODELS
    ) -> None:
        super().__init__(rank, scale, batch, models)
        os.environ["TF_CONFIG"] = tf_config
        import keras

        import tfdist

        self._prepare(tfdist.MultiWorkerMirroredStrategy(), keras)


class StockWorker(Worker):
    """tf_keras under TensorFlow's own strategy, RING, with which Keras 3 does not work."""

    def __init__(
        self,
        rank: int,
        scale: float,
        batch: int,
        addresses: Sequence[str],
        models: Sequence[str] = MODELS,
    ) -> None:
        super().__init__(rank, scale, batch, models)
        strategy = stock_strategy(rank, addresses)
        import tf_keras

        self._prepare(strategy, tf_keras)
