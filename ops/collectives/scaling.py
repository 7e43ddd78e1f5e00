"""Multiplies tensors by constants before and after a reduction."""

from __future__ import annotations

import math
import numbers
from typing import Any

import tensorflow as tf


def check_factor(factor: Any, name: str, asked: str) -> None:
    """Refuses what cannot be a scaling factor.

    Args:
      factor: what the caller passed.
      name: the argument's name, for messages.
      asked: the call, for messages.

    Raises:
      TypeError: it is not a number.
      ValueError: it is infinite or not a number at all.
    """
    if not isinstance(factor, numbers.Real) or isinstance(factor, bool):
        raise TypeError(f"{asked}: expected {name} to be a number, received {factor!r}")
    if not math.isfinite(factor):
        raise ValueError(f"{asked}: expected {name} to be finite, received {factor!r}")


def scaled(values: list, factor: float, asked: str) -> list:
    """Returns tensors times a constant, with their dtypes.

    16-bit floats are multiplied in float32. Integers are multiplied as integers, which wrap, if the
    factor is one; else in float64, and the product is truncated toward zero. Gradients pass
    through the multiplication.

    Args:
      values: tensors or `tf.IndexedSlices`.
      factor: the constant, as `check_factor` accepts it; 1 returns the values as they are.
      asked: the call, for messages.

    Raises:
      TypeError: a tensor of bools, unless the factor is 1.
    """
    if factor == 1:
        return values
    return [_scaled(value, float(factor), asked) for value in values]


def _scaled(value: Any, factor: float, asked: str) -> Any:
    if isinstance(value, tf.IndexedSlices):
        rows = _scaled(value.values, factor, asked)
        return tf.IndexedSlices(rows, value.indices, value.dense_shape)
    dtype = value.dtype
    if dtype == tf.bool:
        raise TypeError(f"{asked}: expected numbers to multiply by {factor:g}, received bool")
    if dtype.is_integer:
        wide = tf.int64 if factor.is_integer() and abs(factor) < 2**63 else tf.float64
    else:
        wide = tf.float32 if dtype.size == 2 else dtype
    constant = tf.constant(int(factor) if wide == tf.int64 else factor, wide)
    return tf.cast(tf.cast(value, wide) * constant, dtype)
