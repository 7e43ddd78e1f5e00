"""Conversion of ids to flat int64 ids, and of their rows to the shape of the ids."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tfdist._types import AnyTensor

COMBINERS = (None, "sum", "mean", "sqrtn")


class IdTypeError(TypeError, NotImplementedError):
    """Ids of an unsupported type.

    A Sequential without an Input assumes that its first layer's input is float32; if the shapes
    cannot be inferred from that (NotImplementedError), it waits for the real input.
    """


def as_int64(ids: tf.Tensor) -> tf.Tensor:
    """Returns ids as int64: integers unchanged, strings as their 64-bit fingerprints.

    Raises:
      IdTypeError: the ids are neither.
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
    """Returns the ids, and checks that each is in [0, `input_dim`) if there is an `input_dim`.

    Raises:
      tf.errors.InvalidArgumentError: an id is outside; names the table.
    """
    if input_dim is None:
        return ids
    flat = tf.reshape(ids, [-1])
    wrong = tf.boolean_mask(flat, (flat < 0) | (flat >= input_dim))
    message = f"embedding table {table!r}: expected ids from 0 to {input_dim - 1}"
    fits = tf.debugging.Assert(tf.size(wrong) == 0, [message, "received", wrong])
    with tf.control_dependencies([fits]):
        return tf.identity(ids)


def flat_values(ids: AnyTensor) -> tf.Tensor:
    """Returns the ids of a dense, ragged or sparse tensor as int64."""
    if isinstance(ids, tf.RaggedTensor):
        return as_int64(ids.flat_values)
    if isinstance(ids, tf.SparseTensor):
        return as_int64(ids.values)
    return as_int64(ids)


def clipped(rows: tf.Tensor, max_norm: float | None) -> tf.Tensor:
    """Scales rows whose Euclidean norm exceeds `max_norm` to that norm."""
    return rows if max_norm is None else tf.clip_by_norm(rows, max_norm, axes=[-1])


def safe(
    ids: tf.SparseTensor | tf.RaggedTensor,
    weights: AnyTensor | None,
    combiner: str,
    default_id: int | str | None,
    drops_negative: bool,
) -> tuple[tf.SparseTensor, tf.SparseTensor | None]:
    """Removes invalid ids, and gives a default id to each example without a valid one.

    Args:
      ids: sparse, or ragged of two dimensions.
      weights: like `ids`, or `None`.
      combiner: unless it is "sum", ids with weights up to 0 are invalid.
      default_id: the id for examples without ids; `None`: they stay empty.
      drops_negative: whether negative ids are invalid.

    Returns:
      Ids, int64, and weights, float32, or `None` if there are none. They have the rank of the given
      ones.

    Raises:
      ValueError: weights and ids are of different kinds.
    """
    _check_kinds(ids, weights)
    if isinstance(ids, tf.RaggedTensor):
        ids = ids.to_sparse()
        weights = None if weights is None else weights.to_sparse()
    flat = as_int64(ids.values)
    flat_weights = None if weights is None else tf.cast(weights.values, tf.float32)
    is_valid = tf.ones_like(flat, tf.bool)
    if drops_negative:
        is_valid &= flat >= 0
    if flat_weights is not None and combiner != "sum":
        is_valid &= flat_weights > 0
    indices, shape = tf.boolean_mask(ids.indices, is_valid), ids.dense_shape
    flat = tf.boolean_mask(flat, is_valid)
    flat_weights = None if flat_weights is None else tf.boolean_mask(flat_weights, is_valid)
    if default_id is not None:
        default = as_int64(tf.constant(default_id))
        empty = _empty_examples(indices, shape)
        indices = tf.concat([indices, empty], 0)
        flat = tf.concat([flat, tf.fill([tf.shape(empty)[0]], default)], 0)
        if flat_weights is not None:
            flat_weights = tf.concat([flat_weights, tf.ones([tf.shape(empty)[0]])], 0)
        # The last dimension must hold one id.
        shape = tf.concat([shape[:-1], tf.maximum(shape[-1:], 1)], 0)
    valid = tf.SparseTensor(indices, flat, shape)
    return valid, None if flat_weights is None else tf.SparseTensor(indices, flat_weights, shape)


def _empty_examples(indices: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    """Returns the first index of each example without ids."""
    lead = shape[:-1]
    count = tf.reduce_prod(lead)
    examples = _segments(indices, shape)
    present = tf.math.unsorted_segment_max(tf.ones_like(examples, tf.int32), examples, count) > 0
    empty = tf.boolean_mask(tf.range(count), ~present)
    # Not tf.unravel_index, which refuses empty input. If a dimension is 0, no example is empty.
    coordinates = empty[:, tf.newaxis] // tf.maximum(_strides(lead), 1) % tf.maximum(lead, 1)
    return tf.pad(coordinates, [[0, 0], [0, 1]])


def _segments(indices: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    """Returns the example of each id: a flat index over all dimensions but the last."""
    return tf.reduce_sum(indices[:, :-1] * _strides(shape[:-1]), 1)


def _strides(shape: tf.Tensor) -> tf.Tensor:
    return tf.math.cumprod(shape, exclusive=True, reverse=True)


def combined(
    ids: AnyTensor, rows: tf.Tensor, weights: AnyTensor | None, combiner: str | None
) -> tf.Tensor | tf.RaggedTensor:
    """Gives rows the shape of their ids, and combines the rows of each example.

    Args:
      ids: dense of any shape; ragged; or sparse of two dimensions or more.
      rows: the rows of `flat_values(ids)`, with the width as the last dimension.
      weights: a tensor like `ids`, the factors of the rows; `None`: 1.
      combiner: `None` combines nothing. Otherwise rows are summed over the last dimension of ids,
        and the sum is divided by the sum of the weights ("mean") or the root of the sum of their
        squares ("sqrtn"). Without ids the result is 0.

    Returns:
      Without a combiner the shape of `ids` and the width, ragged if they are; with one, the same
      without the last dimension of `ids`.

    Raises:
      ValueError: sparse ids without a combiner; weights and ids of different kinds.
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


def _of_sparse(
    ids: tf.SparseTensor, rows: tf.Tensor, weights: tf.Tensor | None, combiner: str
) -> tf.Tensor:
    if ids.shape.rank == 2:
        return _of_segments(rows, ids.indices[:, 0], ids.dense_shape[0], weights, combiner)
    lead = ids.dense_shape[:-1]
    segments, count = _segments(ids.indices, ids.dense_shape), tf.reduce_prod(lead)
    flat = _of_segments(rows, segments, count, weights, combiner)
    result = tf.reshape(flat, tf.concat([lead, [rows.shape[-1]]], 0))
    return tf.ensure_shape(result, ids.shape[:-1].concatenate(rows.shape[-1:]))


def _of_ragged(
    ids: tf.RaggedTensor, rows: tf.Tensor, weights: tf.Tensor | None, combiner: str
) -> tf.Tensor | tf.RaggedTensor:
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


def _of_segments(
    rows: tf.Tensor, segments: tf.Tensor, count: tf.Tensor, weights: tf.Tensor | None, combiner: str
) -> tf.Tensor:
    def add(values: tf.Tensor) -> tf.Tensor:
        return tf.math.unsorted_segment_sum(values, segments, count)

    total = add(rows)
    if combiner == "sum":
        return total
    if weights is None:
        weights = tf.ones(tf.shape(rows)[:1], rows.dtype)
    return tf.math.divide_no_nan(total, _divisor(weights, combiner, add)[:, tf.newaxis])


def _divisor(weights: tf.Tensor, combiner: str, add: Callable[..., tf.Tensor]) -> tf.Tensor:
    axis = (-1,) if add is tf.reduce_sum else ()
    if combiner == "mean":
        return add(weights, *axis)
    return tf.sqrt(add(tf.square(weights), *axis))


def _check_kinds(ids: AnyTensor, weights: AnyTensor | None) -> None:
    if weights is None or not (_is_composite(ids) or _is_composite(weights)):
        return
    if type(weights) is not type(ids):
        raise ValueError(
            f"an embedding's weights: expected a {type(ids).__name__}, as its ids are, received a "
            f"{type(weights).__name__}"
        )


def _is_composite(value: object) -> bool:
    return isinstance(value, tf.RaggedTensor | tf.SparseTensor)


def _values(value: AnyTensor) -> tf.Tensor:
    if isinstance(value, tf.RaggedTensor):
        return value.flat_values
    return value.values if isinstance(value, tf.SparseTensor) else tf.convert_to_tensor(value)
