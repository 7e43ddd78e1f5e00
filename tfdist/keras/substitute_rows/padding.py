"""The substitute row of a batch that has no rows.

A row must have a legal value, and finite derivatives with usual functions, since 0 times infinity
is NaN. Real numbers lie between 0.25 and 0.75, so logarithms and roots are finite, and differ, so
deviations are not 0. The first integer of a row with several ones is 1 and the others are 0: a mask
that leaves out zeros keeps one step. Strings are "0", booleans are true.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist._types import AnyTensor
from tfdist.keras.prediction_attributes import LOGITS, MASK, changed_values

# The sizes of inner dimensions that an empty batch does not tell: of a sequence, of an image.
_LENGTH, _SIDE = 32, 64


def can_be_empty(value: object) -> bool:
    """Whether a value is a tensor whose first dimension is unknown or 0."""
    if not isinstance(value, tf.Tensor | tf.RaggedTensor | tf.SparseTensor):
        return False
    if value.dtype in (tf.variant, tf.resource):
        return False
    rank = value.shape.rank
    return rank is None or (rank > 0 and not value.shape[0])


def has_no_rows(value: AnyTensor) -> tf.Tensor:
    """Returns whether a value that `can_be_empty` has no rows, bool[]."""
    if isinstance(value, tf.RaggedTensor):
        return tf.equal(value.nrows(), 0)
    if isinstance(value, tf.SparseTensor):
        return tf.equal(value.dense_shape[0], 0)
    if value.shape.rank and value.shape[0] == 0:
        return tf.constant(True)
    # A scalar of unknown rank has a row.
    return tf.reduce_any(tf.equal(tf.shape(value)[:1], 0))


def with_substitutes(values: Sequence[AnyTensor], is_empty: tf.Tensor) -> list[AnyTensor]:
    """Returns values that `can_be_empty`; values without rows have one if `is_empty`.

    Args:
      values: tensors of one batch, also ragged and sparse ones.
      is_empty: bool[], whether the batch has no rows.
    """
    masks = [getattr(value, MASK, None) for value in values]
    padded = iter(_padded([*values, *(m for m in masks if can_be_empty(m))], is_empty))
    results = [next(padded) for _ in values]
    for result, mask in zip(results, masks, strict=True):
        if mask is not None:
            setattr(result, MASK, next(padded) if can_be_empty(mask) else mask)
    return results


def _padded(values: list[AnyTensor], is_empty: tf.Tensor) -> list[AnyTensor]:
    results = [_sparse_row(v) if isinstance(v, tf.SparseTensor) else None for v in values]
    dense = [v for v in values if not isinstance(v, tf.SparseTensor)]
    made: list[tf.Tensor | tf.RaggedTensor] = []
    if tf.get_static_value(is_empty):
        made = [_row(value) for value in dense]
    elif dense:
        # Its branches cost nothing in a step with rows: a pad would copy the batch.
        made = tf.cond(is_empty, lambda: [_row(value) for value in dense], lambda: list(dense))
    remaining = iter(made)
    return [next(remaining) if result is None else result for result in results]


def _row(value: tf.Tensor | tf.RaggedTensor) -> tf.Tensor | tf.RaggedTensor:
    """Returns one row in place of none; a value that has rows is not changed."""
    if isinstance(value, tf.RaggedTensor):
        splits = [tf.constant([0, 1], value.row_splits.dtype)] * value.ragged_rank
        return tf.RaggedTensor.from_nested_row_splits(_filler(value.flat_values), splits, False)
    shape = _shape_of_one(value)
    # A tensor of another kind of rows may have some.
    row = tf.cond(has_no_rows(value), lambda: _filler(value), lambda: value)
    return tf.ensure_shape(row, shape)


def _shape_of_one(value: tf.Tensor) -> tf.TensorShape:
    if value.shape.rank is None:
        return value.shape
    # Outputs that depend on the batch are told by a first dimension that is not known.
    return tf.TensorShape([1 if value.shape[0] == 0 else None, *value.shape[1:]])


def _filler(value: tf.Tensor) -> tf.Tensor:
    inner = tf.shape(value)[1:]
    # An empty batch has 0 where a size is not known.
    size = tf.where(tf.size(inner) < 3, _LENGTH, _SIDE)
    inner = tf.where(tf.equal(inner, 0), size, inner)
    return tf.reshape(_numbers(value.dtype, tf.reduce_prod(inner)), tf.concat([[1], inner], 0))


def _numbers(dtype: tf.DType, count: tf.Tensor) -> tf.Tensor:
    """Returns `count` legal values."""
    indices = tf.range(count)
    if dtype == tf.bool:
        return tf.fill([count], True)
    if dtype == tf.string:
        return tf.fill([count], "0")
    if dtype.is_integer:
        return tf.cast((indices < 1) & (count > 1), dtype)
    return tf.cast(0.25 + tf.cast(indices % 7, tf.float32) / 14.0, dtype)


def _sparse_row(value: tf.SparseTensor) -> tf.SparseTensor:
    """Returns a sparse tensor with a row of zeros in place of none."""
    rank = value.shape.rank
    rows = tf.maximum(value.dense_shape[0], 1)
    if rank is None:
        shape = tf.concat([[rows], value.dense_shape[1:]], 0)
    else:
        inner = [value.dense_shape[i] if n is None else n for i, n in enumerate(value.shape)][1:]
        shape = tf.stack([rows, *(tf.cast(n, tf.int64) for n in inner)])
    return tf.SparseTensor(value.indices, value.values, shape)


def without_substitutes(value: Any, is_empty: tf.Tensor, is_static: bool) -> Any:
    """Returns an output of a layer without the rows that it has of the substitute row.

    Args:
      value: of any type. Tensors with a known number of rows are not changed.
      is_empty: bool[], whether the inputs are substitutes.
      is_static: whether it is known that they are, and that each is one row.
    """
    if isinstance(value, tf.RaggedTensor):
        return value[: _kept(value.nrows(), is_empty)] if value.shape[0] is None else value
    if not isinstance(value, tf.Tensor):
        return value
    result = _emptied(value, is_empty, is_static)
    if result is value:
        return value
    for name in (MASK, LOGITS):
        attribute = getattr(value, name, None)
        if attribute is not None:
            setattr(result, name, without_substitutes(attribute, is_empty, is_static))
    return result


def _emptied(value: tf.Tensor, is_empty: tf.Tensor, is_static: bool) -> tf.Tensor:
    if value.shape.rank is None:
        # It must not be sliced if it is a scalar.
        return tf.cond(is_empty, lambda: _no_rows(value), lambda: value)
    if value.shape.rank == 0:
        is_number = value.dtype.is_floating or value.dtype.is_complex
        return tf.where(is_empty, tf.zeros_like(value), value) if is_number else value
    if is_static and value.shape[0] == 1:
        return value[:0]
    if value.shape[0] is not None:
        return value
    return changed_values(value, lambda tensor: rows_of_batch(tensor, is_empty))


def _no_rows(value: tf.Tensor) -> tf.Tensor:
    return tf.reshape(value, tf.concat([[0], tf.shape(value)[1:]], 0))


def rows_of_batch(value: tf.Tensor, is_empty: tf.Tensor) -> tf.Tensor:
    """Returns all rows of a tensor, or none of them if `is_empty`."""
    shape = value.shape
    kept = value[: _kept(tf.shape(value)[0], is_empty)]
    if shape.rank is not None:
        kept.set_shape([None, *shape[1:]] if not tf.executing_eagerly() else kept.shape)
    return kept


def _kept(rows: tf.Tensor, is_empty: tf.Tensor) -> tf.Tensor:
    return tf.where(is_empty, tf.zeros_like(rows), rows)
