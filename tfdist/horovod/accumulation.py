"""Sums the gradients of several backward passes before they travel.

    pass         1      2      3      4      5      6
    sums       + g1   + g2   + g3     0    + g4   ...
                               |
                               `-- reduced over the ranks and applied: one step in three passes

Communication happens in the last pass only. The sums belong to this rank and are not saved: a
loaded model begins with a first pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf


class Accumulator:
    """The sums of one optimizer, on this rank.

    Args:
      api_name: the name of the function that the user called, for messages.
      passes: the number of backward passes per step; at least 2.
      average: apply the mean of the passes instead of their sum.
    """

    def __init__(self, api_name: str, passes: int, average: bool) -> None:
        self._api_name = api_name
        self._passes = passes
        self._average = average
        self._sums: list[_Sum | None] = []
        self._done: tf.Variable | None = None

    def add(self, gradients: Sequence, variables: Sequence, apply: Callable[[list], None]) -> None:
        """Adds the gradients of one pass; after the last pass of a step applies the sums.

        Args:
          gradients: tensors, `tf.IndexedSlices` or None.
          variables: their variables, the same in every pass.
          apply: called with a list of sums, one per variable; in a `tf.function` it is called in a
            branch of a `tf.cond`.

        Raises:
          ValueError: other variables have gradients than in the first pass.
        """
        if self._done is None:
            self._create(gradients, variables)
        self._check(gradients)
        for total, gradient in zip(self._sums, gradients, strict=True):
            if total is not None:
                total.add(gradient)
        done = self._done
        assert done is not None
        done.assign_add(1)

        def last_pass() -> None:
            factor = 1 / self._passes if self._average else None
            apply([None if total is None else total.take(factor) for total in self._sums])
            done.assign(0)

        tf.cond(done >= self._passes, last_pass, lambda: None)

    def reset(self) -> None:
        """Forgets the passes that no step has applied."""
        if self._done is None:
            return
        self._done.assign(0)
        for total in self._sums:
            if total is not None:
                total.reset()

    def _create(self, gradients: Sequence, variables: Sequence) -> None:
        kinds = [_SumOfRows if isinstance(g, tf.IndexedSlices) else _Sum for g in gradients]
        with tf.init_scope():  # a tf.function is traced more than once
            self._done = tf.Variable(0, trainable=False, name="backward_passes")
            self._sums = [
                None if gradient is None else kind(variable.shape, gradient.dtype)
                for kind, gradient, variable in zip(kinds, gradients, variables, strict=True)
            ]

    def _check(self, gradients: Sequence) -> None:
        expected = [total is not None for total in self._sums]
        received = [gradient is not None for gradient in gradients]
        if expected != received:
            raise ValueError(
                f"{self._api_name}: expected gradients of the same variables in every backward "
                f"pass, {sum(expected)} of {len(expected)} as in the first; received "
                f"{sum(received)} of {len(received)}"
            )


class _Sum:
    """The sum of dense gradients."""

    def __init__(self, shape: tf.TensorShape, dtype: tf.DType) -> None:
        self._total = tf.Variable(tf.zeros(shape, dtype), trainable=False)

    def add(self, gradient: tf.Tensor | tf.IndexedSlices) -> None:
        self._total.assign_add(tf.convert_to_tensor(gradient))

    def reset(self) -> None:
        """Makes the sum zero."""
        self._total.assign(tf.zeros_like(self._total))

    def take(self, factor: float | None) -> tf.Tensor | tf.IndexedSlices:
        """Returns the sum, times `factor` if it is not `None`, and resets it to zero."""
        total = self._total.read_value()
        self._total.assign(tf.zeros_like(total))
        return total if factor is None else total * factor


class _SumOfRows(_Sum):
    """The sum of sparse gradients; rows that no gradient touched are not communicated."""

    def __init__(self, shape: tf.TensorShape, dtype: tf.DType) -> None:
        super().__init__(shape, dtype)
        self._touched = tf.Variable(tf.zeros(shape[:1], tf.bool), trainable=False)

    def add(self, gradient: tf.Tensor | tf.IndexedSlices) -> None:
        self._total.scatter_add(gradient)
        marks = tf.ones_like(gradient.indices, tf.bool)
        self._touched.scatter_update(tf.IndexedSlices(marks, gradient.indices))

    def reset(self) -> None:
        super().reset()
        self._touched.assign(tf.zeros_like(self._touched))

    def take(self, factor: float | None) -> tf.Tensor | tf.IndexedSlices:
        rows = tf.squeeze(tf.where(self._touched), 1)
        values = tf.gather(self._total, rows)
        shape = tf.shape(self._total)
        self._total.scatter_update(tf.IndexedSlices(tf.zeros_like(values), rows))
        self._touched.assign(tf.zeros_like(self._touched))
        return tf.IndexedSlices(values if factor is None else values * factor, rows, shape)
