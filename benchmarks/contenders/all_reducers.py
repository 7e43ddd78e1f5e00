"""Ranks that all-reduce float32 tensors inside a tf.function, each in a process of its own.

An object is made, and its methods are called, in the process of one rank.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence


class Rank:
    """Verifies and times `reduce`, which subclasses make.

    Args:
      rank: of this process.
      size: number of ranks.
    """

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._case: tuple[int, int] | None = None
        self._tensors: tuple = ()

    def reduce(self, tensors: tuple) -> Sequence:
        raise NotImplementedError

    def verify(self, count: int, size: int) -> None:
        """Raises unless `count` tensors of `size` bytes are reduced to their sums."""
        import numpy as np

        pattern = np.arange(size // 4, dtype=np.float32) % 1000
        for i, result in enumerate(self.reduce(self._tensors_of(count, size))):
            expected = self._expected(pattern + i)
            if not np.array_equal(result, expected):
                raise AssertionError(f"{type(self).__name__}: wrong sum of {count} x {size} bytes")

    def run(self, count: int, size: int, calls: int) -> float:
        """Mean seconds of so many calls, after one that waits for the other ranks."""
        tensors = self._tensors_of(count, size)
        self.reduce(tensors)
        start = time.perf_counter()
        for _ in range(calls):
            self.reduce(tensors)
        return (time.perf_counter() - start) / calls

    def _expected(self, pattern):
        return self._size * pattern + 5 * self._size * (self._size - 1)

    def _tensors_of(self, count: int, size: int) -> tuple:
        import numpy as np
        import tensorflow as tf

        if self._case != (count, size):
            self._tensors = ()  # their memory goes first
            pattern = np.arange(size // 4, dtype=np.float32) % 1000
            self._tensors = tuple(tf.constant(pattern + i + 10 * self._rank) for i in range(count))
            self._case = (count, size)
        return self._tensors


class TfdistRank(Rank):
    """A worker of tfdist's."""

    def __init__(self, rank: int, size: int, tf_config: str) -> None:
        super().__init__(rank, size)
        os.environ["TF_CONFIG"] = tf_config
        import tensorflow as tf

        from tfdist import job, ops
        from tfdist.cluster import Cluster

        communicator = job.join(Cluster.from_environment()).communicator
        self.reduce = tf.function(lambda tensors: ops.all_reduce(list(tensors), communicator))


class StockRank(Rank):
    """A worker of `tf.distribute.MultiWorkerMirroredStrategy`, RING over gRPC."""

    def __init__(self, rank: int, size: int, addresses: Sequence[str]) -> None:
        super().__init__(rank, size)
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy(
            tf.distribute.cluster_resolver.SimpleClusterResolver(
                tf.train.ClusterSpec({"worker": list(addresses)}),
                task_type="worker",
                task_id=rank,
                rpc_layer="grpc",
            ),
            tf.distribute.experimental.CommunicationOptions(implementation="RING"),
        )

        def all_reduce(*tensors):
            # TensorFlow refuses a tensor without a device, such as an argument; tf.identity gives
            # it one and copies nothing.
            placed = [tf.identity(tensor) for tensor in tensors]
            return tf.distribute.get_replica_context().all_reduce("SUM", placed)

        self.reduce = tf.function(lambda tensors: strategy.run(all_reduce, args=tensors))


class NoOpRank(Rank):
    """Does nothing: one op with the inputs and outputs of an all-reduce, which passes them on."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        import tensorflow as tf

        self.reduce = tf.function(lambda tensors: tf.raw_ops.IdentityN(input=list(tensors)))

    def _expected(self, pattern):
        return pattern + 10 * self._rank
