"""Gradients of which every rank has some rows."""

from __future__ import annotations

import tensorflow as tf

from tfdist.ops import library
from tfdist.ops.calls import attributes, resolve
from tfdist.ops.communicator import Communicator


def all_reduce_rows(
    slices: tf.IndexedSlices,
    communicator: Communicator | None,
    reduce_op: str = "sum",
    *,
    label: str = "all_reduce_rows",
    timeout: float | None = None,
) -> tf.IndexedSlices:
    """Sums or averages, over all ranks, tensors of which every rank has some rows.

    Rows of one index are added before they travel. What travels is rows and their indices, or the
    dense tensor where that is less; ops/kernels/all_reduce_rows_kernel.cc tells when.

    Args:
      slices: rows of float16, bfloat16, float32, float64, int32 or int64, any number on each rank;
        everything but that number must be the same on every rank.
      communicator: the ranks; `None` means those of the job.
      reduce_op: "sum" or "mean". The mean is over all ranks, also those that have no such row.
      label: how error messages call it.
      timeout: as for `all_reduce`.

    Returns:
      The rows that any rank has, each once, in the same order on every rank.

    Raises:
      As `all_reduce`.
    """
    shape = slices.dense_shape
    if shape is not None:  # callers may have passed a tuple, which TensorFlow cannot nest
        shape = tf.convert_to_tensor(shape)
    ids, rows = library.graph_ops().tfdist_all_reduce_rows(
        ids=slices.indices,
        rows=slices.values,
        table_rows=tf.constant(-1, tf.int64) if shape is None else tf.cast(shape[0], tf.int64),
        reduce_op=reduce_op,
        **attributes(resolve(communicator, "fused_all_reduce"), label, timeout),
    )
    return tf.IndexedSlices(rows, ids, shape)
