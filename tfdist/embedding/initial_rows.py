"""The initial values of rows, computed with TensorFlow's ops, for models without servers.

They equal the servers' values (table/row_initializer.cc): a stream of SplitMix64 (Steele et al.
2014) for each id.
"""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

from tfdist.ops.ps.table_config import InitializerKind, RowInitializer

_Kind = InitializerKind
# Truncation rejects one normal number in 22; with this many spare ones, enough are left.
_SPARE = 64


def initial_rows(initializer: RowInitializer, ids: tf.Tensor, width: int) -> tf.Tensor:
    """Returns the initial rows of ids.

    Args:
      initializer: the table's initializer.
      ids: int64[n].
      width: the width of a row.

    Returns:
      float32[n, width].
    """
    a, b = initializer.a, initializer.b
    if initializer.kind == _Kind.CONSTANT:
        return tf.fill([tf.shape(ids)[0], width], tf.constant(a, tf.float32))
    start = _mix(tf.bitcast(ids, tf.uint64)) ^ _mix(tf.constant(initializer.seed, tf.uint64))
    if initializer.kind == _Kind.UNIFORM:
        values = a + (b - a) * _uniform(start, width)
    elif initializer.kind == _Kind.NORMAL:
        values = a + b * _normal(start, width)
    else:
        normal = _normal(start, 2 * width + _SPARE)
        accepted = tf.cast(tf.abs(normal) <= 2, tf.int32)
        first = tf.argsort(accepted, direction="DESCENDING", stable=True)[:, :width]
        values = a + b * tf.gather(normal, first, batch_dims=1)
    return tf.cast(values, tf.float32)


def _uniform(start: tf.Tensor, count: int) -> tf.Tensor:
    """Returns uniform numbers in [0, 1), float64[n, count]."""
    bits = _mix(start[:, tf.newaxis] + np.arange(count, dtype=np.uint64))
    return tf.cast(tf.bitwise.right_shift(bits, tf.constant(11, tf.uint64)), tf.float64) * 2.0**-53


def _normal(start: tf.Tensor, count: int) -> tf.Tensor:
    """Returns normal numbers, float64[n, count] (Box and Muller 1958)."""
    uniform = tf.reshape(_uniform(start, 2 * count), [-1, count, 2])
    radius = tf.sqrt(-2 * tf.math.log(1 - uniform[:, :, 0]))
    return radius * tf.cos(2 * math.pi * uniform[:, :, 1])


def _mix(x: tf.Tensor) -> tf.Tensor:
    def number(value: int) -> tf.Tensor:
        return tf.constant(value, tf.uint64)

    def shifted(value: tf.Tensor, bits: int) -> tf.Tensor:
        return value ^ tf.bitwise.right_shift(value, number(bits))

    x = x + number(0x9E3779B97F4A7C15)
    x = shifted(x, 30) * number(0xBF58476D1CE4E5B9)
    x = shifted(x, 27) * number(0x94D049BB133111EB)
    return shifted(x, 31)
