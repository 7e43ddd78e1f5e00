"""Shares of a batch: together they are the batch, each row once."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfdist.data.shares import rows_of

# Rows, shares, and the rows of each share.
CUTS = [
    (7, 3, [3, 3, 1]),
    (22, 3, [8, 8, 6]),
    (6, 3, [2, 2, 2]),
    (4, 3, [2, 2, 0]),
    (1, 3, [1, 0, 0]),
    (0, 2, [0, 0]),
]


@pytest.mark.parametrize(("rows", "shares", "sizes"), CUTS)
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_shares_are_cut_as_tensorflow_cuts_them(rows, shares, sizes, known):
    spec = tf.TensorSpec([rows if known else None, 2], tf.float32)
    cut = tf.function(rows_of, input_signature=[spec, *[tf.TensorSpec([], tf.int32)] * 2])
    batch = np.arange(2 * rows, dtype="f4").reshape(rows, 2)
    found = [cut(batch, shares, share).numpy() for share in range(shares)]
    assert [len(part) for part in found] == sizes
    np.testing.assert_array_equal(np.concatenate(found), batch)
    plain = [rows_of(tf.constant(batch), shares, share) for share in range(shares)]
    for part, other in zip(plain, found, strict=True):
        np.testing.assert_array_equal(part, other)


def test_every_part_of_a_batch_is_cut_alike():
    dense = tf.range(7)
    ragged = tf.RaggedTensor.from_row_lengths(tf.range(21), range(7))
    sparse = tf.sparse.from_dense(tf.linalg.diag(tf.range(1, 8)))
    for share, rows in enumerate(([0, 1, 2], [3, 4, 5], [6])):
        found = rows_of({"x": (dense, None), "y": ragged, "z": sparse}, 3, share)
        assert found["x"][0].numpy().tolist() == rows and found["x"][1] is None
        assert found["y"].to_list() == [ragged[row].numpy().tolist() for row in rows]
        expected = tf.linalg.diag(tf.range(1, 8)).numpy()[rows]
        np.testing.assert_array_equal(tf.sparse.to_dense(found["z"])[: len(rows)], expected)
