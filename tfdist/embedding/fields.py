"""Several categorical fields in the columns of one tensor of ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfdist.embedding.ids import as_int64


def field_ids(ids: tf.Tensor, slots: int | Sequence[int]) -> tf.Tensor:
    """Makes the ids of different slots different, for a table that several slots share.

    The result is the exclusive or of an id and a 64-bit constant of its slot. It is one to one in
    each slot; ids of different slots, if they are small numbers or fingerprints, collide with a
    probability of 2^-64 for each pair.

    Args:
      ids: integers or strings.
      slots: the slot of all ids, or the slot of each index in the last dimension.

    Returns:
      int64 of the shape of `ids`: the ids that `tfdist.layers.FieldWiseEmbedding` looks up in its
      table.

    Example:

    ```python
    rows = layer.table.fetch(tfdist.embedding.field_ids(tf.constant(["ann"]), slots=2))
    ```
    """
    constants = np.array([_constant(slot) for slot in np.atleast_1d(slots).tolist()], np.uint64)
    return tf.bitwise.bitwise_xor(as_int64(ids), tf.constant(constants.view(np.int64)))


def pooled_by_slot(
    rows: tf.Tensor, weights: tf.Tensor | None, slots: Sequence[int], combiner: str
) -> tf.Tensor:
    """Combines the rows of each slot.

    Args:
      rows: float[batch, columns, width].
      weights: float[batch, columns]; `None`: 1.
      slots: the slot of each column.
      combiner: "sum", "mean" or "sqrtn", as for `embedding_lookup`.

    Returns:
      float[batch, slots, width].
    """
    if weights is not None:
        weights = tf.cast(weights, rows.dtype)
        rows = rows * weights[..., tf.newaxis]
    count = max(slots) + 1
    is_plain = list(slots) == list(range(count))
    if is_plain and (weights is None or combiner == "sum"):
        return rows

    def add(values: tf.Tensor) -> tf.Tensor:
        """Sums over the columns of each slot, which are dimension 1 of `values`."""
        if is_plain:
            return values
        order = [1, 0, *range(2, values.shape.rank)]
        sums = tf.math.unsorted_segment_sum(tf.transpose(values, order), slots, count)
        return tf.transpose(sums, order)

    total = add(rows)
    if combiner == "sum":
        return total
    if weights is None:
        weights = tf.ones(tf.shape(rows)[:2], rows.dtype)
    divisor = add(weights) if combiner == "mean" else tf.sqrt(add(tf.square(weights)))
    return tf.math.divide_no_nan(total, divisor[..., tf.newaxis])


def _constant(slot: int) -> int:
    """Returns a slot's constant: 64 bits, half of which differ between slots (SplitMix64)."""
    bits = 2**64 - 1
    x = (slot + 1) * 0x9E3779B97F4A7C15 & bits
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & bits
    x = (x ^ x >> 27) * 0x94D049BB133111EB & bits
    return x ^ x >> 31
