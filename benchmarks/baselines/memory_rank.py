"""The rank that benchmarks/memory.py measures."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

from baselines.all_reducers import join

KB = 1 << 10
M_MMAP_THRESHOLD = -3  # of mallopt, in malloc.h
# Bytes of the float32 tensors that a step reduces together: in their own messages, or bundled.
SIZES = (4, 4 * KB, 4 * KB, 64 * KB, 1024 * KB)
# Numbers of rows for the other collectives, in turn.
ROWS = (2, 1000, 3, 40_000, 17)


class MemoryRank:
    """Runs steps, makes communicators, and returns the resources of the process.

    Args:
      rank: of this process.
      size: number of ranks.
      tf_config: its place in the job.
    """

    def __init__(self, rank: int, size: int, tf_config: str) -> None:
        # By default it depends on the thread whether malloc keeps the pages of a freed megabyte.
        # With a fixed threshold it returns them.
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 16 * KB)
        communicator = join(tf_config)
        import tensorflow as tf

        from tfdist import ops

        self._rank, self._size, self._communicator = rank, size, communicator
        self._tensors = tuple(self._pattern(bytes_, rank) for bytes_ in SIZES)
        # Made once: TensorFlow 2.16 leaks 0.3 KB in each `tf.constant`.
        self._rows = tuple(tf.ones([rows]) for rows in ROWS)
        self._step = tf.function(lambda tensors: ops.all_reduce(list(tensors), communicator))
        self._others = tf.function(
            self._other_collectives, input_signature=[tf.TensorSpec([None], tf.float32)]
        )

    def steps(self, count: int) -> dict[str, int]:
        """Runs `count` steps, verifies the last one's sums, and returns `held()`."""
        import numpy as np

        from tfdist import ops

        sums: list = []
        for number in range(count):
            sums = self._step(self._tensors)
            rows = self._rows[number % len(ROWS)]
            gradient = self._others(ops.broadcast(rows, self._communicator))
            # The gradient of a rank's own rows, which every rank has gathered, and of the parts.
            mine = np.arange(len(rows)) <= self._rank
            np.testing.assert_array_equal(gradient, self._size * mine + 1)
        for tensor, reduced in zip(self._tensors, sums, strict=True):
            others = tensor.numpy() - 10 * self._rank
            expected = self._size * others + 5 * self._size * (self._size - 1)
            np.testing.assert_array_equal(reduced, expected)
        return held()

    def _other_collectives(self, x):
        import tensorflow as tf

        from tfdist import ops

        with tf.GradientTape() as tape:
            tape.watch(x)
            gathered = ops.all_gather(x[: 1 + self._rank], self._communicator)
            part = ops.reduce_scatter(x, self._communicator)
            words = ops.all_gather(tf.fill([2], "word"), self._communicator)
            length = tf.cast(tf.size(words), tf.float32)
            value = tf.reduce_sum(gathered) + tf.reduce_sum(part) + length
        return tape.gradient(value, x)

    def listen(self) -> int:
        """Makes another communicator; returns its port."""
        from tfdist import ops

        self._communicator = ops.Communicator(self._rank, self._size)
        return self._communicator.port

    def connect_and_close(
        self, key: bytes, generation: int, addresses: Sequence[str]
    ) -> dict[str, int]:
        """Connects the communicator, reduces once, closes it, and returns `held()`."""
        import numpy as np

        from tfdist import ops

        with self._communicator as communicator:
            communicator.connect(key, generation, addresses, timeout=60.0)
            reduced = ops.all_reduce(self._pattern(KB, self._rank + generation), communicator)
        expected = sum(self._pattern(KB, rank + generation).numpy() for rank in range(self._size))
        np.testing.assert_array_equal(reduced, expected)
        return held()

    @staticmethod
    def _pattern(size: int, rank: int):
        import tensorflow as tf

        return tf.range(size // 4, dtype=tf.float32) % 1000 + 10.0 * rank


def held() -> dict[str, int]:
    """Kilobytes of resident memory, open descriptors, threads and mappings of this process.

    Pages of files are left out: the kernel drops them, and reads them again, as it sees fit.
    """
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "resident": sum(int(status[kind].split()[0]) for kind in ("RssAnon", "RssShmem")),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": int(status["Threads"]),
        "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
    }
