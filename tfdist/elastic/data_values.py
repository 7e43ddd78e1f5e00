"""Some values of the arrays that a call trains with, which members compare.

All members must have the same arrays: each cuts its share out of its own. Other arrays of the same
shape, such as arrays with unseeded noise or in an unseeded order, would train without an
error. So members compare 256 values, evenly chosen from all arrays. Up to one in fifty may differ:
processors of two kinds round differently, and a label that was computed from rounded numbers is
another one then.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._types import Nested

_COUNT = 256
_MAX_OTHERS = 1 / 50
_CLOSE = 1e-3  # relative to the largest value


def values_of(data: Nested) -> list[float]:
    """Returns values of arrays, as many for each; none of other data.

    Args:
      data: arrays of NumPy and tensors of any dtype and shape, in tuples, lists and dicts; datasets
        and others, which are left out.
    """
    arrays = [array for array in _arrays(data) if array.size]
    values: list[float] = []
    for array in arrays:
        count = min(array.size, _COUNT // min(len(arrays), _COUNT))
        indices = np.linspace(0, array.size - 1, count).astype(np.int64)
        values += map(_number, array.flat[indices])
    return values[:_COUNT]


def differences(own: Sequence[float], theirs: Sequence[float]) -> str:
    """Says how values differ from another member's; an empty text if they are equal."""
    if len(own) != len(theirs):
        return f"expected {len(theirs)} values of arrays, received {len(own)}"
    if not own:
        return ""
    one, other = np.array(own), np.array(theirs)
    largest = np.max(np.abs(other[np.isfinite(other)]), initial=0.0)
    differ = ~np.isclose(one, other, rtol=_CLOSE, atol=_CLOSE * largest, equal_nan=True)
    if np.mean(differ) <= _MAX_OTHERS:
        return ""
    first = int(np.argmax(differ))
    return (
        f"{int(differ.sum())} of {len(one)} values that were compared are others: expected "
        f"{other[first]:.6g} for the first of them, received {one[first]:.6g}"
    )


def _arrays(data: Nested) -> Iterator[np.ndarray]:
    if isinstance(data, dict):
        for key in sorted(data, key=str):
            yield from _arrays(data[key])
    elif isinstance(data, list | tuple):
        for item in data:
            yield from _arrays(item)
    elif isinstance(data, np.ndarray):
        yield data
    elif isinstance(data, tf.Tensor) and hasattr(data, "numpy"):
        yield np.asarray(data.numpy())


def _number(value: Any) -> float:
    if isinstance(value, bytes | str):
        return float(zlib.crc32(value.encode() if isinstance(value, str) else value))
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return 0.0  # of a kind without an order, which a model refuses
