"""Multiplies tensors by constants before and after a reduction."""

from __future__ import annotations

import math
import numbers

import tensorflow as tf

from tfdist._types import Gradient


def check_factor(factor: object, name: str, api_name: str) -> None:
    """Checks that a scaling factor is a finite number.

    Args:
      factor: the argument of the call.
      name: the argument's name, for messages.
      api_name: the public function that was called, for messages.

    Raises:
      TypeError: it is not a number.
      ValueError: it is infinite or NaN.
    """
    if not isinstance(factor, numbers.Real) or isinstance(factor, bool):
        raise TypeError(f"{api_name}: expected {name} to be a number, received {factor!r}")
    if not math.isfinite(factor):
        raise ValueError(f"{api_name}: expected {name} to be finite, received {factor!r}")


def scaled(values: list, factor: float, api_name: str) -> list:
    """Returns tensors times a constant, with their dtypes.

    16-bit floats are multiplied in float32. An integral factor multiplies integers as integers,
    which wrap; another factor multiplies them in float64, and the product is truncated toward zero.
    The multiplication is differentiable.

    Args:
      values: tensors or `tf.IndexedSlices`.
      factor: a constant that `check_factor` accepts; 1 returns the values unchanged.
      api_name: the public function that was called, for messages.

    Raises:
      TypeError: a tensor is bool and the factor is not 1.
    """
    if factor == 1:
        return values
    return [_scaled(value, float(factor), api_name) for value in values]


def _scaled(value: Gradient, factor: float, api_name: str) -> Gradient:
    if isinstance(value, tf.IndexedSlices):
        rows = _scaled(value.values, factor, api_name)
        return tf.IndexedSlices(rows, value.indices, value.dense_shape)
    dtype = value.dtype
    if dtype == tf.bool:
        raise TypeError(f"{api_name}: expected numbers to multiply by {factor:g}, received bool")
    if dtype.is_integer:
        wide = tf.int64 if factor.is_integer() and abs(factor) < 2**63 else tf.float64
    else:
        wide = tf.float32 if dtype.size == 2 else dtype
    constant = tf.constant(int(factor) if wide == tf.int64 else factor, wide)
    return tf.cast(tf.cast(value, wide) * constant, dtype)
