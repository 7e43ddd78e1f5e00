"""The two jobs that benchmarks/embedding.py compares.

An object is made, and its methods are called, in the process of one task. Both minimise the same
loss, a fraction of the sum of the rows' squares, with Adagrad; a row's initial values are ones.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

LEARNING_RATE = 0.01
FRACTION = 2.0**-12  # of a row: its gradient for each occurrence of its id
ACCUMULATOR = 0.1  # initial value of Adagrad's
PATIENCE = 60.0  # seconds
_CHUNK = 100_000  # rows made or read in one call


@dataclasses.dataclass(frozen=True)
class Workload:
    """The lookups of a step in each of `tables` tables.

    Attributes:
      name: prefix of the tables' names.
      tables: their number.
      rows: in each.
      width: elements of a row.
      ids: number of ids per step and table.
      skew: of zipfian ids; 0 for equally frequent ids.
    """

    name: str
    tables: int
    rows: int
    width: int
    ids: int
    skew: float = 0.0

    def draw(self, number: Any) -> Any:
        """The ids of a step: int64 (tables, ids), the same in every process."""
        import tensorflow as tf

        shape, seed = [self.tables, self.ids], tf.stack([number, 0])
        if not self.skew:
            return tf.random.stateless_uniform(shape, seed, maxval=self.rows, dtype=tf.int64)
        # The inverse of the distribution function of a density like x**-skew.
        power = 1 - self.skew
        uniform = tf.random.stateless_uniform(shape, seed)
        ranks = tf.pow(1 + uniform * ((self.rows + 1.0) ** power - 1), 1 / power)
        return tf.minimum(tf.cast(ranks, tf.int64) - 1, self.rows - 1)

    @property
    def whole_bytes(self) -> int:
        """The bytes of a row and a gradient for each id of a step."""
        return 2 * self.tables * self.ids * self.width * 4

    def verify(self, who: str, table: int, steps: int, read: Any, together: int = 1) -> None:
        """Raises unless a table's rows are as after `steps` sequential steps.

        Args:
          who: the implementation, for the error message.
          table: its index.
          steps: their number.
          read: returns the rows of ids.
          together: the number of draws whose gradients make one step.
        """
        drawn = [
            np.concatenate([self.draw(step * together + i)[table].numpy() for i in range(together)])
            for step in range(steps)
        ]
        touched = np.unique(np.concatenate(drawn))
        rows, sums = np.ones(len(touched)), np.full(len(touched), ACCUMULATOR)
        for ids in drawn:
            # All elements of a row are the same.
            times = np.zeros(len(touched))
            np.add.at(times, np.searchsorted(touched, ids), 1)
            gradients = times * FRACTION * rows
            sums += gradients**2
            rows -= LEARNING_RATE * gradients / np.sqrt(sums)
        expected = np.repeat(rows[:, np.newaxis], self.width, 1)
        # One missing or extra gradient would differ by 8e-6.
        np.testing.assert_allclose(read(touched), expected, 0, 2e-6, err_msg=f"{who}, {table}")


class TfdistWorker:
    """A worker of tfdist's job."""

    def __init__(self, tf_config: str, workloads: Sequence[Workload]) -> None:
        os.environ["TF_CONFIG"] = tf_config
        self._strategy = self._make_strategy()
        self._workloads = workloads
        self._tables, self._steps = [], []
        for workload in workloads:
            self._add(workload)

    def _make_strategy(self) -> Any:
        import tfdist

        return tfdist.ParameterServerStrategy()

    @property
    def _client(self) -> Any:
        from tfdist.job import process

        return process.current.ps_worker.client

    def _add(self, workload: Workload) -> None:
        import keras
        import tensorflow as tf

        import tfdist

        with self._strategy.scope():
            tables = [
                tfdist.EmbeddingTable(
                    f"{workload.name}_{i}",
                    workload.width,
                    optimizer=tfdist.embedding.Adagrad(initial_accumulator_value=ACCUMULATOR),
                    initializer="ones",
                )
                for i in range(workload.tables)
            ]
            variables = [table.rows for table in tables]
            optimizer = keras.optimizers.Adagrad(LEARNING_RATE)
            optimizer.build(variables)

        def step_of_one(number):
            ids = tf.unstack(workload.draw(number))
            with tf.GradientTape() as tape:
                looked_up = tfdist.ops.embedding_lookup(tables, ids)
                loss = tf.add_n([tf.nn.l2_loss(rows) for rows in looked_up]) * FRACTION
            optimizer.apply(tape.gradient(loss, variables))

        self._tables.append(tables)
        self._steps.append(tf.function(lambda number: self._strategy.run(step_of_one, (number,))))

    def fill(self) -> None:
        """Gives every id a row."""
        for workload in range(len(self._workloads)):
            for table in range(self._workloads[workload].tables):
                self._look_up(workload, table, np.arange(self._workloads[workload].rows), True)

    def steps(self, workload: int, numbers: Sequence[int]) -> int:
        """Runs these steps; returns the bytes of their rows and gradients."""
        import tensorflow as tf

        before = self._client.stats()
        for number in numbers:
            self._steps[workload](tf.constant(number))
        self._client.flush(PATIENCE)
        after = self._client.stats()
        pushed = after.bytes_pushed - before.bytes_pushed
        return pushed + after.lookup_bytes - before.lookup_bytes

    def verify(self, workload: int, steps: int) -> None:
        for table in range(self._workloads[workload].tables):
            self._workloads[workload].verify(
                "tfdist", table, steps, lambda ids, t=table: self._look_up(workload, t, ids, False)
            )

    def _look_up(self, workload: int, table: int, ids: np.ndarray, training: bool) -> np.ndarray:
        import tfdist

        parts = [
            tfdist.ops.embedding_lookup(
                self._tables[workload][table], ids[i : i + _CHUNK], training=training
            ).numpy()
            for i in range(0, len(ids), _CHUNK)
        ]
        return np.concatenate(parts)


class SynchronousTfdistWorker(TfdistWorker):
    """A worker of a job that makes each step together.

    The tables are on the job's parameter servers, or on its workers if there are none.
    """

    def _make_strategy(self) -> Any:
        import tfdist

        return tfdist.MultiWorkerMirroredStrategy()

    def steps(self, workload: int, numbers: Sequence[int]) -> tuple[float, int]:
        """Runs these steps.

        Returns:
          The bytes sent to and received from other processes, and the number of distinct ids.
        """
        distinct = sum(
            len(np.unique(ids))
            for number in numbers
            for ids in self._workloads[workload].draw(number).numpy()
        )
        before = self._moved()
        super().steps(workload, numbers)
        return self._moved() - before, distinct

    def verify(self, workload: int, steps: int) -> None:
        """Raises unless all rows are as after steps of all workers together."""
        import tfdist

        for table in range(self._workloads[workload].tables):
            self._workloads[workload].verify(
                *("tfdist", table, steps),
                lambda ids, t=table: self._look_up(workload, t, ids, False),
                tfdist.size(),
            )

    def _moved(self) -> int:
        import tfdist

        traffic = [sum(both) for both in self._client.traffic().values()]
        own = not tfdist.Cluster.from_environment().ps
        return sum(traffic) - (traffic[tfdist.rank()] if own else 0)


class StockCoordinator:
    """The coordinator of TensorFlow's job, which schedules the workers' steps.

    Args:
      cluster: of the job.
      workloads: to train.
      by_op: update each table with one op instead of tf_keras's optimizer.
    """

    def __init__(
        self, cluster: dict[str, list[str]], workloads: Sequence[Workload], by_op: bool
    ) -> None:
        import tensorflow as tf

        self._strategy = tf.distribute.ParameterServerStrategy(
            tf.distribute.cluster_resolver.SimpleClusterResolver(
                tf.train.ClusterSpec(cluster), rpc_layer="grpc"
            )
        )
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self._strategy)
        self._workloads = workloads
        self._by_op = by_op
        self._tables, self._steps = [], []
        for workload in workloads:
            self._add(workload)

    def _add(self, workload: Workload) -> None:
        import tensorflow as tf

        shape = [workload.rows, workload.width]
        with self._strategy.scope():
            tables = [tf.Variable(lambda: tf.ones(shape)) for _ in range(workload.tables)]
            make_step = self._op(shape, workload.tables) if self._by_op else self._optimizer(tables)

        def step_of_one(number):
            ids = tf.unstack(workload.draw(number))
            with tf.GradientTape() as tape:
                looked_up = [
                    tf.nn.embedding_lookup(table, of_one)
                    for table, of_one in zip(tables, ids, strict=True)
                ]
                loss = tf.add_n([tf.nn.l2_loss(rows) for rows in looked_up]) * FRACTION
            make_step(tables, tape.gradient(loss, tables))

        self._tables.append(tables)
        self._steps.append(tf.function(lambda number: self._strategy.run(step_of_one, (number,))))

    @staticmethod
    def _optimizer(tables: Sequence[Any]) -> Any:
        import tf_keras

        optimizer = tf_keras.optimizers.Adagrad(
            LEARNING_RATE, initial_accumulator_value=ACCUMULATOR, epsilon=1e-7
        )
        optimizer.build(tables)
        return lambda tables, gradients: optimizer.apply_gradients(
            zip(gradients, tables, strict=True)
        )

    @staticmethod
    def _op(shape: Sequence[int], count: int) -> Any:
        import tensorflow as tf

        accumulators = [tf.Variable(lambda: tf.fill(shape, ACCUMULATOR)) for _ in range(count)]

        def make_step(tables: Sequence[Any], gradients: Sequence[Any]) -> None:
            for table, accumulator, gradient in zip(tables, accumulators, gradients, strict=True):
                # Equals a sparse Adagrad optimizer: the worker adds the gradients of equal ids.
                unique, positions = tf.unique(gradient.indices)
                summed = tf.math.unsorted_segment_sum(gradient.values, positions, tf.size(unique))
                tf.raw_ops.ResourceSparseApplyAdagrad(
                    var=table.handle,
                    accum=accumulator.handle,
                    lr=LEARNING_RATE,
                    grad=summed,
                    indices=unique,
                )

        return make_step

    def steps(self, workload: int, numbers: Sequence[int]) -> None:
        """Runs these steps."""
        import tensorflow as tf

        for number in numbers:
            self._coordinator.schedule(self._steps[workload], args=(tf.constant(number),))
        self._coordinator.join()

    def verify(self, workload: int, steps: int) -> None:
        import tensorflow as tf

        for table, variable in enumerate(self._tables[workload]):
            self._workloads[workload].verify(
                "stock", table, steps, lambda ids, v=variable: tf.gather(v, ids).numpy()
            )
