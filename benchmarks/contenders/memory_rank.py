"""The rank that benchmarks/memory.py watches."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from contenders.all_reducers import join

KB = 1 << 10
# Bytes of float32 tensors that a step reduces together: some alone in a message, some many in one.
SIZES = (4, 4 * KB, 4 * KB, 64 * KB, 1024 * KB)


class MemoryRank:
    """Runs steps and makes communicators, and says what the process holds.

    Args:
      rank: of this process.
      size: number of ranks.
      tf_config: its place in the job.
    """

    def __init__(self, rank: int, size: int, tf_config: str) -> None:
        communicator = join(tf_config)
        import tensorflow as tf

        from tfdist import ops

        self._rank, self._size, self._communicator = rank, size, communicator
        self._tensors = tuple(self._pattern(bytes_, rank) for bytes_ in SIZES)
        self._step = tf.function(lambda tensors: ops.all_reduce(list(tensors), communicator))

    def steps(self, count: int) -> dict[str, int]:
        """Runs so many steps, verifies the last one's sums, and returns what is held."""
        import numpy as np

        sums: list = []
        for _ in range(count):
            sums = self._step(self._tensors)
        for tensor, reduced in zip(self._tensors, sums, strict=True):
            others = tensor.numpy() - 10 * self._rank
            expected = self._size * others + 5 * self._size * (self._size - 1)
            np.testing.assert_array_equal(reduced, expected)
        return held()

    def listen(self) -> int:
        """Makes another communicator; returns its port."""
        from tfdist import ops

        self._communicator = ops.Communicator(self._rank, self._size)
        return self._communicator.port

    def connect_and_close(
        self, token: bytes, generation: int, addresses: Sequence[str]
    ) -> dict[str, int]:
        """Connects it, reduces once with it, closes it, and returns what is held."""
        import numpy as np

        from tfdist import ops

        with self._communicator as communicator:
            communicator.connect(token, generation, addresses, timeout=60.0)
            reduced = ops.all_reduce(self._pattern(KB, self._rank + generation), communicator)
        expected = sum(self._pattern(KB, rank + generation).numpy() for rank in range(self._size))
        np.testing.assert_array_equal(reduced, expected)
        return held()

    @staticmethod
    def _pattern(size: int, rank: int):
        import tensorflow as tf

        return tf.range(size // 4, dtype=tf.float32) % 1000 + 10.0 * rank


def held() -> dict[str, int]:
    """Kilobytes of resident memory, open descriptors, threads and mappings of this process."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "resident": int(status["VmRSS"].split()[0]),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": int(status["Threads"]),
        "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
    }
