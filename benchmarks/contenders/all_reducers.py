"""Ranks that all-reduce float32 tensors inside a tf.function, each in a process of its own.

An object is made, and its methods are called, in the process of one rank.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

# Sums of a few hundred are rounded to 11 bits in each of the ring's steps.
FP16_TOLERANCE = 2e-3

# From tensors to their sums.
Reduction = Callable[[tuple], Sequence]


def join(tf_config: str):
    """Joins tfdist's job; returns the communicator."""
    os.environ["TF_CONFIG"] = tf_config
    from tfdist import job
    from tfdist.cluster import Cluster

    return job.join(Cluster.from_environment()).communicator


def stock_strategy(rank: int, addresses: Sequence[str]):
    """Starts TensorFlow's server; to be called before anything runs."""
    import tensorflow as tf

    return tf.distribute.MultiWorkerMirroredStrategy(
        tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({"worker": list(addresses)}),
            task_type="worker",
            task_id=rank,
            rpc_layer="grpc",
        ),
        tf.distribute.experimental.CommunicationOptions(implementation="RING"),
    )


def all_reduce_as_fp16(tensors: Sequence, communicator) -> list:
    """Sums that travel, and are added, as float16."""
    import tensorflow as tf

    from tfdist import ops

    halves = ops.all_reduce([tf.cast(tensor, tf.float16) for tensor in tensors], communicator)
    return [tf.cast(half, tf.float32) for half in halves]


class Rank:
    """Verifies and times reductions, each inside a `tf.function`.

    Args:
      rank: of this process.
      size: number of ranks.
      exact: the reduction that is called unless another is named.
      fp16: the one that is called "fp16".
    """

    def __init__(
        self, rank: int, size: int, exact: Reduction, fp16: Reduction | None = None
    ) -> None:
        import tensorflow as tf

        self._rank, self._size = rank, size
        self._reductions = {"exact": tf.function(exact)}
        if fp16 is not None:
            self._reductions["fp16"] = tf.function(fp16)
        self._case: tuple[int, int] | None = None
        self._tensors: tuple = ()

    def verify(self, count: int, size: int, how: str = "exact") -> None:
        """Raises unless `count` tensors of `size` bytes are reduced to what they should be."""
        import numpy as np

        pattern = np.arange(size // 4, dtype=np.float32) % 1000
        tolerance = FP16_TOLERANCE if how == "fp16" else 0
        for i, result in enumerate(self._reductions[how](self._tensors_of(count, size))):
            expected = self._expected(pattern + i)
            message = f"{type(self).__name__}: sum {i} of {count} x {size} bytes"
            np.testing.assert_allclose(result, expected, rtol=tolerance, err_msg=message)

    def run(self, count: int, size: int, calls: int, how: str = "exact") -> float:
        """Mean seconds of so many calls, after one that waits for the other ranks."""
        tensors = self._tensors_of(count, size)
        reduce = self._reductions[how]
        reduce(tensors)
        start = time.perf_counter()
        for _ in range(calls):
            reduce(tensors)
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
        communicator = join(tf_config)
        from tfdist import ops

        super().__init__(
            rank,
            size,
            lambda tensors: ops.all_reduce(list(tensors), communicator),
            lambda tensors: all_reduce_as_fp16(tensors, communicator),
        )


class StockRank(Rank):
    """A worker of `tf.distribute.MultiWorkerMirroredStrategy`, RING over gRPC."""

    def __init__(self, rank: int, size: int, addresses: Sequence[str]) -> None:
        strategy = stock_strategy(rank, addresses)
        import tensorflow as tf

        def all_reduce(*tensors):
            # TensorFlow refuses a tensor without a device, such as an argument; tf.identity gives
            # it one and copies nothing.
            placed = [tf.identity(tensor) for tensor in tensors]
            return tf.distribute.get_replica_context().all_reduce("SUM", placed)

        super().__init__(rank, size, lambda tensors: strategy.run(all_reduce, args=tensors))


class NoOpRank(Rank):
    """Does nothing: one op with the inputs and outputs of an all-reduce, which passes them on."""

    def __init__(self, rank: int, size: int) -> None:
        import tensorflow as tf

        super().__init__(rank, size, lambda tensors: tf.raw_ops.IdentityN(input=list(tensors)))

    def _expected(self, pattern):
        return pattern + 10 * self._rank
