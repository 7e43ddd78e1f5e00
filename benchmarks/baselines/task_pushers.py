"""The processes of benchmarks/task_pushes.py: a parameter server, and its only worker."""

from __future__ import annotations

import os
import time

BATCH, TASK = 10, 1000
PATIENCE = 60.0  # seconds


class Server:
    """A parameter server; serves until its process ends."""

    def __init__(self, tf_config: str, checkpoint_dir: str | None) -> None:
        os.environ["TF_CONFIG"] = tf_config
        import tfdist

        tfdist.init(checkpoint_dir=checkpoint_dir)


class Worker:
    """Steps of Adam on one variable, each on a batch of record numbers.

    Args:
      tf_config: of the worker.
      checkpoint_dir: of the strategy; `None`: no log.
      elements: of the variable, float32.
      of_tasks: whether the batches are of data tasks, so that the pushes commit them.
    """

    def __init__(
        self, tf_config: str, checkpoint_dir: str | None, elements: int, of_tasks: bool
    ) -> None:
        os.environ["TF_CONFIG"] = tf_config
        import keras
        import tensorflow as tf

        import tfdist

        tfdist.init(checkpoint_dir=checkpoint_dir)
        self._strategy = tfdist.ParameterServerStrategy(checkpoint_dir=checkpoint_dir)
        with self._strategy.scope():
            variable = tf.Variable(tf.zeros([elements]))
            optimizer = keras.optimizers.Adam(1e-3)
            optimizer.build([variable])
        gradient = tf.fill([elements], 1e-3)

        def step(batch):
            optimizer.apply([gradient * tf.cast(tf.size(batch), tf.float32)])

        self._step = tf.function(lambda batch: self._strategy.run(step, args=(batch,)))
        records = 10**7
        if of_tasks:
            data = tfdist.data.from_ranges(records, TASK).batch(BATCH).prefetch(2)
            self._batches = iter(tfdist.data.tracked(data))
            self._around = tfdist.data.step
        else:
            import contextlib

            data = tf.data.Dataset.range(records).batch(BATCH).prefetch(2)
            self._batches = iter(data)
            self._around = contextlib.nullcontext

    def steps(self, count: int) -> float:
        """Returns the mean seconds of a step, with the last push's answer."""
        start = time.perf_counter()
        for _ in range(count):
            batch = next(self._batches)
            with self._around():
                self._step(batch)
        self._strategy.extended.parameters.client.flush(PATIENCE)
        return (time.perf_counter() - start) / count

    def refused(self) -> int:
        """Returns how many pushes were refused."""
        return self._strategy.communication_stats().refused_pushes
