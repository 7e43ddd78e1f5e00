"""How a batch is cut into shares."""

from __future__ import annotations

import tensorflow as tf

from tfdist._types import AnyTensor, Nested


def rows_of(batch: Nested, shares: int | tf.Tensor, share: int | tf.Tensor) -> Nested:
    """Returns one share of a batch's rows.

    Shares are cut as TensorFlow cuts them: of equal size, but the last ones may be short or empty.

    Args:
      batch: tensors of shape [rows, ...], also sparse and ragged ones, in any structure.
      shares: the number of shares; a number, or int32[].
      share: which of them, from 0; a number, or int32[].

    Returns:
      The same structure.
    """
    first_leaf = tf.nest.flatten(batch)[0]
    rows = first_leaf.shape[0] if first_leaf.shape.rank else None
    if rows is None or tf.is_tensor(shares) or rows % shares:
        # The shares' shapes must not depend on the share.
        rows = _rows_in(first_leaf)
    size = (rows + shares - 1) // shares
    return rows_between(batch, share * size, (share + 1) * size)


def rows_between(batch: Nested, first: int | tf.Tensor, last: int | tf.Tensor) -> Nested:
    """Returns some rows of a batch, which may have fewer.

    Args:
      batch: as for `rows_of`.
      first: the first row; a number, or an integer tensor without dimensions.
      last: the row after the last one.

    Returns:
      The same structure.
    """

    def cut(value: AnyTensor | None) -> AnyTensor | None:
        if value is None:
            return None
        if isinstance(value, tf.SparseTensor):
            begin, rows = (tf.cast(number, tf.int64) for number in (first, last - first))
            start = tf.concat([[begin], tf.zeros_like(value.dense_shape[1:])], 0)
            shape = tf.concat([[rows], value.dense_shape[1:]], 0)
            return tf.sparse.slice(value, start, shape)
        return value[first:last]

    return tf.nest.map_structure(cut, batch)


def number_of_rows(batch: Nested) -> int | None:
    """Returns how many rows a batch in memory has; `None` if it has no tensors.

    Args:
      batch: as for `rows_of`.
    """
    first = _first_leaf(batch)
    return None if first is None else int(_rows_in(first))


def rows_in(batch: Nested) -> tf.Tensor:
    """Returns how many rows a batch has, int64[].

    Args:
      batch: as for `rows_of`, with at least one tensor.
    """
    return tf.cast(_rows_in(_first_leaf(batch)), tf.int64)


def _first_leaf(batch: Nested) -> AnyTensor | None:
    return next((leaf for leaf in tf.nest.flatten(batch) if leaf is not None), None)


def _rows_in(leaf: AnyTensor) -> tf.Tensor:
    if isinstance(leaf, tf.RaggedTensor):
        return tf.cast(leaf.nrows(), tf.int32)
    if isinstance(leaf, tf.SparseTensor):
        return tf.cast(leaf.dense_shape[0], tf.int32)
    return tf.shape(leaf)[0]
