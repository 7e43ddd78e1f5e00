"""From ids of all kinds to flat int64 ones, and from their rows back to the shape of the ids."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

COMBINERS = (None, "sum", "mean", "sqrtn")


class IdTypeError(TypeError, NotImplementedError):
    """Ids of a type that cannot be ids.

    A Sequential without an Input takes its first layer's input for float32, and when the shapes
    cannot be inferred from that (NotImplementedError) it waits for the real input.
    """


def as_int64(ids: tf.Tensor) -> tf.Tensor:
    """Returns ids as int64: integers as they are, strings as their 64-bit fingerprints.

    Raises:
      IdTypeError: they are neither.
    """
    if ids.dtype == tf.string:
        flat = tf.reshape(ids, [-1])
        return tf.reshape(tf.bitcast(tf.fingerprint(flat), tf.int64), tf.shape(ids))
    if not ids.dtype.is_integer:
        raise IdTypeError(
            f"an embedding's ids: expected integers or strings, received {ids.dtype.name}. (A "
            "Keras model takes its input for float32 unless a keras.Input gives its dtype.)"
        )
    return tf.cast(ids, tf.int64)


def flat_values(ids: Any) -> tf.Tensor:
    """The ids of a dense, ragged or sparse tensor, int64."""
    if isinstance(ids, tf.RaggedTensor):
        return as_int64(ids.flat_values)
    if isinstance(ids, tf.SparseTensor):
        return as_int64(ids.values)
    return as_int64(ids)


def combined(ids: Any, rows: tf.Tensor, weights: Any, combiner: str | None) -> Any:
    """Puts rows in the place of their ids, and adds up those of an example if asked to.

    Args:
      ids: dense of any shape; ragged; or sparse of two dimensions.
      rows: of their `flat_values`, with the width as the last dimension.
      weights: a tensor like `ids`, which rows are multiplied with; `None`: 1.
      combiner: `None` leaves the rows apart; else those of the last dimension of ids are added up,
        and the sum divided by that of the weights ("mean") or the root of the sum of their squares
        ("sqrtn"). Without ids the result is 0.

    Returns:
      Without a combiner the shape of `ids` and the width, ragged if they are; with one, the same
      without the last dimension of `ids`.

    Raises:
      ValueError: sparse ids need a combiner; weights are of another kind than ids.
    """
    if weights is not None:
        if type(weights) is not type(ids) and (_is_composite(ids) or _is_composite(weights)):
            raise ValueError(
                f"an embedding's weights: expected a {type(ids).__name__}, as its ids are, "
                f"received a {type(weights).__name__}"
            )
        weights = tf.cast(_values(weights), rows.dtype)
        rows = rows * weights[..., tf.newaxis]
    if isinstance(ids, tf.SparseTensor):
        if combiner is None or ids.shape.rank not in (None, 2):
            raise ValueError(
                "an embedding's sparse ids: expected two dimensions and a combiner, received "
                f"shape {ids.shape} and combiner={combiner!r}"
            )
        return _of_segments(rows, ids.indices[:, 0], ids.dense_shape[0], weights, combiner)
    if isinstance(ids, tf.RaggedTensor):
        if combiner is None:
            return ids.with_flat_values(rows)
        return _of_ragged(ids, rows, weights, combiner)
    return rows if combiner is None else _of_dense(rows, weights, combiner)


def _of_dense(rows: tf.Tensor, weights: tf.Tensor | None, combiner: str) -> tf.Tensor:
    total = tf.reduce_sum(rows, -2)
    if combiner == "sum":
        return total
    if weights is None:
        weights = tf.ones(tf.shape(rows)[:-1], rows.dtype)
    return tf.math.divide_no_nan(total, _divisor(weights, combiner, tf.reduce_sum)[..., tf.newaxis])


def _of_ragged(ids: tf.RaggedTensor, rows: tf.Tensor, weights: Any, combiner: str) -> Any:
    if ids.flat_values.shape.rank != 1:
        raise ValueError(
            "an embedding's ragged ids: expected the last dimension to be ragged, received shape "
            f"{ids.shape}"
        )
    inner = tf.RaggedTensor.from_row_splits(ids.flat_values, ids.nested_row_splits[-1])
    result = _of_segments(rows, inner.value_rowids(), inner.nrows(), weights, combiner)
    for splits in reversed(ids.nested_row_splits[:-1]):
        result = tf.RaggedTensor.from_row_splits(result, splits)
    return result


def _of_segments(rows, segments, count, weights, combiner: str) -> tf.Tensor:
    def add(values: tf.Tensor) -> tf.Tensor:
        return tf.math.unsorted_segment_sum(values, segments, count)

    total = add(rows)
    if combiner == "sum":
        return total
    if weights is None:
        weights = tf.ones(tf.shape(rows)[:1], rows.dtype)
    return tf.math.divide_no_nan(total, _divisor(weights, combiner, add)[:, tf.newaxis])


def _divisor(weights: tf.Tensor, combiner: str, add: Any) -> tf.Tensor:
    axis = (-1,) if add is tf.reduce_sum else ()
    if combiner == "mean":
        return add(weights, *axis)
    return tf.sqrt(add(tf.square(weights), *axis))


def _is_composite(value: Any) -> bool:
    return isinstance(value, tf.RaggedTensor | tf.SparseTensor)


def _values(value: Any) -> tf.Tensor:
    if isinstance(value, tf.RaggedTensor):
        return value.flat_values
    return value.values if isinstance(value, tf.SparseTensor) else tf.convert_to_tensor(value)
