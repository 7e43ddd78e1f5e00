"""What happens to rows of tables in a worker's graph."""

from __future__ import annotations

import tensorflow as tf

from tfdist.ops import library


def sum_rows(ids: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Adds up rows of equal ids.

    Args:
      ids: int64[n].
      rows: float32[n, width].

    Returns:
      The ids in the order in which they occur first, int64[m], and their sums, float32[m, width].

    Raises:
      tf.errors.InvalidArgumentError: there are not as many rows as ids.

    Example:
      >>> sum_rows(tf.constant([7, 2, 7], tf.int64), tf.constant([[1.0], [2.0], [3.0]]))[1].numpy()
      array([[4.],
             [2.]], dtype=float32)
    """
    return library.graph_ops().tfdist_sum_rows(ids=ids, rows=rows)


@tf.RegisterGradient("TfdistPsLookup")
def _lookup_gradient(op: tf.Operation, *gradients: tf.Tensor) -> list:
    """Of a table's variable, which has no rows: rows and their ids, as of a gather."""
    count = len(gradients)
    slices = []
    for ids, gradient in zip(op.inputs[count:], gradients, strict=True):
        width = gradient.shape[-1]
        slices.append(
            tf.IndexedSlices(
                tf.reshape(gradient, [-1, width]),
                tf.reshape(ids, [-1]),
                tf.constant([0, width], tf.int64),
            )
        )
    return [*slices, *[None] * count]
