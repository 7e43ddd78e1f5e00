"""Workers that train with Adam, for benchmarks/sharding.py.

An object is made, and its methods are called, in the process of one worker.
"""

from __future__ import annotations

import os
import statistics
import time

from baselines.resident import Peak, resident

SKIPPED = 2  # warm-up steps of every fit


class ShardedWorker:
    """A dense network under `tfdist.MultiWorkerMirroredStrategy`.

    Args:
      rank: of this process, which is pinned to one processor.
      tf_config: its place in the job.
      stage: of `tfdist.Sharding`; 0: copies.
      width: of the layers.
      layers: their number.
      batch: examples of each worker in a step.
    """

    def __init__(
        self, rank: int, tf_config: str, stage: int, width: int, layers: int, batch: int
    ) -> None:
        processors = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {processors[rank % len(processors)]})
        os.environ["TF_CONFIG"] = tf_config
        import keras
        import tensorflow as tf

        import tfdist

        tf.config.threading.set_intra_op_parallelism_threads(1)
        sharding = tfdist.Sharding(stage=stage) if stage else None
        self._strategy = tfdist.MultiWorkerMirroredStrategy(sharding=sharding)
        self._size = self._strategy.num_replicas_in_sync
        self._batch = batch
        keras.utils.set_random_seed(1)
        warm = self._model(keras, 8, 1)  # code that is loaded once, and threads, count as the base
        self._fit(warm, SKIPPED + 2)
        self._base = resident()
        self._net = self._model(keras, width, layers)
        self._peak = self._base

    def _model(self, keras, width: int, layers: int):
        with self._strategy.scope():
            hidden = [keras.layers.Dense(width, "relu") for _ in range(layers)]
            model = keras.Sequential([keras.Input((width,)), *hidden])
            model.compile(keras.optimizers.Adam(1e-4), "mse")
        return model

    def _fit(self, model, steps: int) -> list[float]:
        import keras
        import tensorflow as tf

        shape = (self._batch * self._size, model.input_shape[1])
        # All workers train on the same examples.
        rows = tf.random.stateless_normal((self._batch, shape[1]), (1, 2))
        batch = tf.tile(rows, [self._size, 1])
        dataset = tf.data.Dataset.from_tensors((batch, batch)).repeat()
        ends: list[float] = []
        clock = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: ends.append(time.perf_counter())
        )
        model.fit(dataset, steps_per_epoch=steps, callbacks=[clock], verbose=0)
        return [after - before for before, after in zip(ends, ends[1:], strict=False)]

    def fit(self, steps: int) -> float:
        """Median seconds of a step."""
        with Peak() as peak:
            took = self._fit(self._net, steps)
        self._peak = max(self._peak, peak.bytes)
        return statistics.median(took[SKIPPED:])

    def memory(self) -> list[int]:
        """Bytes above the base: the peak of all fits, and between them."""
        return [self._peak - self._base, resident() - self._base]

    def sent(self, steps: int) -> float:
        """Bytes that this worker sends in a step."""
        self._fit(self._net, 1)
        before = self._strategy.communication_stats().bytes_sent
        self._fit(self._net, 1)
        alone = self._strategy.communication_stats().bytes_sent
        self._fit(self._net, 1 + steps)
        after = self._strategy.communication_stats().bytes_sent
        return (after - alone - (alone - before)) / steps

    def total(self) -> float:
        """The sum of the absolute weights."""
        return float(sum(abs(weights).sum() for weights in self._net.get_weights()))
