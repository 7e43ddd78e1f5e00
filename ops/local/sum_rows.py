"""The sum of rows with equal ids, within one process."""

from __future__ import annotations

import tensorflow as tf

from tfdist.ops import library


def sum_rows(ids: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Sums the rows that have equal ids.

    Args:
      ids: int64[n].
      rows: float32[n, width].

    Returns:
      The ids in the order of their first occurrence, int64[m], and their sums, float32[m, width].

    Raises:
      tf.errors.InvalidArgumentError: the numbers of ids and rows differ.

    Example:
      >>> sum_rows(tf.constant([7, 2, 7], tf.int64), tf.constant([[1.0], [2.0], [3.0]]))[1].numpy()
      array([[4.],
             [2.]], dtype=float32)
    """
    return library.graph_ops().tfdist_sum_rows(ids=ids, rows=rows)
