"""A variable to which each worker adds by itself, such as a metric, between the ends of rounds."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfdist.strategies._local_updates.group import without_strategy


class Counter:
    """Knows what this worker has added to a variable since all workers had the same value.

    Args:
      variable: this worker's copy.

    Attributes:
      added: this worker's additions, of the variable's shape.
    """

    def __init__(self, variable: tf.Variable) -> None:
        self._variable = variable
        zeros = np.zeros(variable.shape, variable.dtype.as_numpy_dtype)
        self._base, self.added, self._last = without_strategy(
            lambda: [tf.Variable(zeros) for _ in range(3)]
        )

    def note_step(self, before: tf.Tensor, after: tf.Tensor) -> None:
        """Notes what a step has added.

        A value other than after the last step was assigned, as by `reset_metrics`: earlier
        additions do not count.

        Args:
          before: the value before the step.
          after: the value after it.
        """
        is_new = tf.reduce_any(before != self._last)
        base = tf.where(is_new, before, self._base)
        added = tf.where(is_new, tf.zeros_like(before), self.added)
        self._base.assign(base)
        self.added.assign(added + after - before)
        self._last.assign(after)

    def take_sum(self, added: tf.Tensor) -> None:
        """Gives the variable the value that it has on all workers, to the bit.

        Args:
          added: the sum of all workers' additions.
        """
        value = self._base + added
        for variable in (self._variable, self._base, self._last):
            variable.assign(value)
        self.added.assign(tf.zeros_like(added))
