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


def checked(ids: tf.Tensor, input_dim: int | None, table: str) -> tf.Tensor:
    """Returns the ids, of which each must be from 0 to `input_dim`, exclusive, if there is one.

    Raises:
      tf.errors.InvalidArgumentError: one is not; names the table.
    """
    if input_dim is None:
        return ids
    flat = tf.reshape(ids, [-1])
    wrong = tf.boolean_mask(flat, (flat < 0) | (flat >= input_dim))
    message = f"embedding table {table!r}: expected ids from 0 to {input_dim - 1}"
    fits = tf.debugging.Assert(tf.size(wrong) == 0, [message, "received", wrong])
    with tf.control_dependencies([fits]):
        return tf.identity(ids)


def flat_values(ids: Any) -> tf.Tensor:
    """The ids of a dense, ragged or sparse tensor, int64."""
    if isinstance(ids, tf.RaggedTensor):
        return as_int64(ids.flat_values)
    if isinstance(ids, tf.SparseTensor):
        return as_int64(ids.values)
    return as_int64(ids)


def clipped(rows: tf.Tensor, max_norm: float | None) -> tf.Tensor:
    """Scales rows of a larger Euclidean norm than `max_norm` down to it."""
    return rows if max_norm is None else tf.clip_by_norm(rows, max_norm, axes=[-1])


def safe(
    ids: Any, weights: Any, combiner: str, default_id: int | str | None, drops_negative: bool
) -> tuple[tf.SparseTensor, tf.SparseTensor | None]:
    """Leaves out ids that are not valid, and gives one to each example that then has none.

    Args:
      ids: sparse, or ragged of two dimensions.
      weights: like `ids`, or `None`.
      combiner: with "sum" weights that are not above 0 count like others.
      default_id: of the examples that have none; `None`: they stay without.
      drops_negative: negative ids are not valid.

    Returns:
      Ids, int64, and weights, float32, or `None` if there are none. With `default_id` they are of
      two dimensions or more like the given ones.

    Raises:
      ValueError: weights are of another kind than ids.
    """
    _check_kinds(ids, weights)
    if isinstance(ids, tf.RaggedTensor):
        ids = ids.to_sparse()
        weights = None if weights is None else weights.to_sparse()
    flat = as_int64(ids.values)
    of_each = None if weights is None else tf.cast(weights.values, tf.float32)
    is_valid = tf.ones_like(flat, tf.bool)
    if drops_negative:
        is_valid &= flat >= 0
    if of_each is not None and combiner != "sum":
        is_valid &= of_each > 0
    indices, shape = tf.boolean_mask(ids.indices, is_valid), ids.dense_shape
    flat = tf.boolean_mask(flat, is_valid)
    of_each = None if of_each is None else tf.boolean_mask(of_each, is_valid)
    if default_id is not None:
        default = as_int64(tf.constant(default_id))
        empty = _empty_examples(indices, shape)
        indices = tf.concat([indices, empty], 0)
        flat = tf.concat([flat, tf.fill([tf.shape(empty)[0]], default)], 0)
        if of_each is not None:
            of_each = tf.concat([of_each, tf.ones([tf.shape(empty)[0]])], 0)
        # An example needs room for its one id.
        shape = tf.concat([shape[:-1], tf.maximum(shape[-1:], 1)], 0)
    made = tf.SparseTensor(indices, flat, shape)
    return made, None if of_each is None else tf.SparseTensor(indices, of_each, shape)


def _empty_examples(indices: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    """Indices of the first place of each example that has none."""
    lead = shape[:-1]
    count = tf.reduce_prod(lead)
    examples = _segments(indices, shape)
    present = tf.math.unsorted_segment_max(tf.ones_like(examples, tf.int32), examples, count) > 0
    empty = tf.boolean_mask(tf.range(count), ~present)
    # Not tf.unravel_index, which refuses to do nothing. Where a dimension is 0 nothing is empty.
    places = empty[:, tf.newaxis] // tf.maximum(_strides(lead), 1) % tf.maximum(lead, 1)
    return tf.pad(places, [[0, 0], [0, 1]])


def _segments(indices: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    """The example of each id, counted through all dimensions but the last."""
    return tf.reduce_sum(indices[:, :-1] * _strides(shape[:-1]), 1)


def _strides(shape: tf.Tensor) -> tf.Tensor:
    return tf.math.cumprod(shape, exclusive=True, reverse=True)


def combined(ids: Any, rows: tf.Tensor, weights: Any, combiner: str | None) -> Any:
    """Puts rows in the place of their ids, and adds up those of an example if asked to.

    Args:
      ids: dense of any shape; ragged; or sparse of two dimensions or more.
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
    _check_kinds(ids, weights)
    if weights is not None:
        weights = tf.cast(_values(weights), rows.dtype)
        rows = rows * weights[..., tf.newaxis]
    if isinstance(ids, tf.SparseTensor):
        if combiner is None or ids.shape.rank == 1:
            raise ValueError(
                "an embedding's sparse ids: expected two dimensions or more and a combiner, "
                f"received shape {ids.shape} and combiner={combiner!r}"
            )
        return _of_sparse(ids, rows, weights, combiner)
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


def _of_sparse(ids: tf.SparseTensor, rows: tf.Tensor, weights: Any, combiner: str) -> tf.Tensor:
    if ids.shape.rank == 2:
        return _of_segments(rows, ids.indices[:, 0], ids.dense_shape[0], weights, combiner)
    lead = ids.dense_shape[:-1]
    segments, count = _segments(ids.indices, ids.dense_shape), tf.reduce_prod(lead)
    flat = _of_segments(rows, segments, count, weights, combiner)
    result = tf.reshape(flat, tf.concat([lead, [rows.shape[-1]]], 0))
    return tf.ensure_shape(result, ids.shape[:-1].concatenate(rows.shape[-1:]))


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


def _check_kinds(ids: Any, weights: Any) -> None:
    if weights is None or not (_is_composite(ids) or _is_composite(weights)):
        return
    if type(weights) is not type(ids):
        raise ValueError(
            f"an embedding's weights: expected a {type(ids).__name__}, as its ids are, received a "
            f"{type(weights).__name__}"
        )


def _is_composite(value: Any) -> bool:
    return isinstance(value, tf.RaggedTensor | tf.SparseTensor)


def _values(value: Any) -> tf.Tensor:
    if isinstance(value, tf.RaggedTensor):
        return value.flat_values
    return value.values if isinstance(value, tf.SparseTensor) else tf.convert_to_tensor(value)
