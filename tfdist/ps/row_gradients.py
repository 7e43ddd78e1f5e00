"""Gradients of tables as ids and rows."""

from __future__ import annotations

import tensorflow as tf

from tfdist.ops.local.sum_rows import sum_rows


def flat_rows(gradient: tf.IndexedSlices) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the ids of a gradient, int64[n], and for each its row, float32[n, width]."""
    ids = tf.reshape(tf.cast(gradient.indices, tf.int64), [-1])
    rows = tf.cast(gradient.values, tf.float32)
    return ids, tf.reshape(rows, [-1, rows.shape[-1]])


def unique_flat_rows(gradient: tf.IndexedSlices) -> tuple[tf.Tensor, tf.Tensor]:
    """As `flat_rows`, with each id once: the rows of one id are added up."""
    with tf.device("/device:CPU:0"):
        return sum_rows(*flat_rows(gradient))
