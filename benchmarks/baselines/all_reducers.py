"""Ranks that all-reduce float32 tensors inside a tf.function, each in its own process.

An object is made, and its methods are called, in the process of one rank.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

# Each step of the ring rounds sums of a few hundred to 11 bits.
FP16_TOLERANCE = 2e-3

# A factor of all values that keeps repeated float16 sums finite: eight in a row with four ranks.
UNIT = 2.0**-12

# From tensors to their sums.
Reduction = Callable[[tuple], Sequence]


def join(tf_config: str):
    """Joins tfdist's job; returns the communicator."""
    os.environ["TF_CONFIG"] = tf_config
    from tfdist.config.cluster import Cluster
    from tfdist.job import process

    return process.current.join(Cluster.from_environment()).communicator


def stock_strategy(rank: int, addresses: Sequence[str]):
    """Starts TensorFlow's server; call it before TensorFlow runs anything."""
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
    """Sums of float32 that travel as float16."""
    from tfdist import compression, ops

    compressor = compression.compressor("fp16")
    return ops.fused_all_reduce(list(tensors), communicator, compressor=compressor)


def _pattern(size: int):
    import numpy as np

    return np.arange(size // 4, dtype=np.float32) % 1000


class Rank:
    """Verifies and times reductions, each inside a `tf.function`.

    The function captures its tensors. A training step does not receive its gradients as arguments
    either, and passing a hundred of them costs TensorFlow more than reducing them.

    Args:
      rank: of this process.
      size: number of ranks.
      exact: the default reduction.
      fp16: the reduction named "fp16".
    """

    def __init__(
        self, rank: int, size: int, exact: Reduction, fp16: Reduction | None = None
    ) -> None:
        self._rank, self._size = rank, size
        self._reductions = {"exact": exact, "fp16": fp16}
        self._case: tuple[int, int] | None = None
        self._tensors: tuple = ()
        self._functions: dict[tuple[str, int], Callable[[], Sequence]] = {}

    def verify(self, count: int, size: int, how: str = "exact", in_a_row: int = 1) -> None:
        """Raises unless the sums of `count` tensors of `size` bytes are correct."""
        import numpy as np

        tolerance = FP16_TOLERANCE if how == "fp16" else 0
        for i, result in enumerate(self._function(count, size, how, in_a_row)()):
            expected = self._expected(_pattern(size) + i, in_a_row) * UNIT
            message = f"{type(self).__name__}: sum {i} of {count} x {size} bytes"
            np.testing.assert_allclose(result, expected, rtol=tolerance, err_msg=message)

    def run(
        self, count: int, size: int, calls: int, how: str = "exact", in_a_row: int = 1
    ) -> float:
        """Mean seconds of a reduction, after one call that waits for the other ranks.

        Args:
          count: of tensors.
          size: of each, in bytes.
          calls: of the function.
          how: "exact" or "fp16".
          in_a_row: reductions per call of the function, each of the previous one's results.
        """
        reduce = self._function(count, size, how, in_a_row)
        reduce()
        start = time.perf_counter()
        for _ in range(calls):
            reduce()
        return (time.perf_counter() - start) / calls / in_a_row

    def _expected(self, pattern, in_a_row: int):
        first = self._size * pattern + 5 * self._size * (self._size - 1)
        return first * self._size ** (in_a_row - 1)

    def _function(self, count: int, size: int, how: str, in_a_row: int) -> Callable[[], Sequence]:
        import tensorflow as tf

        tensors, reduction = self._tensors_of(count, size), self._reductions[how]

        def reduce():
            results = tensors
            for _ in range(in_a_row):
                results = reduction(tuple(results))
            return results

        return self._functions.setdefault((how, in_a_row), tf.function(reduce))

    def _tensors_of(self, count: int, size: int) -> tuple:
        import tensorflow as tf

        if self._case != (count, size):
            self._tensors, self._functions = (), {}  # frees their memory first
            mine = _pattern(size) + 10 * self._rank
            self._tensors = tuple(tf.constant((mine + i) * UNIT) for i in range(count))
            self._case = (count, size)
        return self._tensors


class TfdistRank(Rank):
    """A worker of tfdist."""

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
            # TensorFlow refuses a tensor without a device, such as an argument; tf.identity adds
            # one without a copy.
            placed = [tf.identity(tensor) for tensor in tensors]
            return tf.distribute.get_replica_context().all_reduce("SUM", placed)

        super().__init__(rank, size, lambda tensors: strategy.run(all_reduce, args=tensors))


class NoOpRank(Rank):
    """Does nothing: an op with the inputs and outputs of an all-reduce returns its inputs."""

    def __init__(self, rank: int, size: int) -> None:
        import tensorflow as tf

        super().__init__(rank, size, lambda tensors: tf.raw_ops.IdentityN(input=list(tensors)))

    def _expected(self, pattern, in_a_row: int):
        return pattern + 10 * self._rank
