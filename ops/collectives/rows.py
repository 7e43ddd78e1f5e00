"""Gradients of which every rank has some rows."""

from __future__ import annotations

import tensorflow as tf

from tfdist.ops import library
from tfdist.ops.collectives.calls import attributes, resolve
from tfdist.ops.collectives.communicator import Communicator

_REDUCIBLE_ROWS = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)


def check_rows(slices: tf.IndexedSlices, reduce_op: str, asked: str) -> None:
    """Refuses slices whose rows cannot be reduced so.

    Args:
      slices: what is to be reduced.
      reduce_op: the reduction.
      asked: the call, for messages.

    Raises:
      TypeError: rows of another dtype.
      ValueError: another `reduce_op` than "sum" or "mean".
    """
    if reduce_op not in ("sum", "mean"):
        raise ValueError(
            f"{asked}: expected reduce_op 'sum' or 'mean' for tf.IndexedSlices, whose missing rows "
            f"are zeros, received {reduce_op!r}; tf.convert_to_tensor makes a dense tensor of them"
        )
    if slices.dtype not in _REDUCIBLE_ROWS:
        expected = ", ".join(dtype.name for dtype in _REDUCIBLE_ROWS)
        raise TypeError(
            f"{asked}: expected tf.IndexedSlices of {expected}, received {slices.dtype.name}"
        )


def all_reduce_rows(
    slices: tf.IndexedSlices,
    communicator: Communicator | None,
    reduce_op: str = "sum",
    *,
    label: str = "all_reduce_rows",
    timeout: float | None = None,
) -> tf.IndexedSlices:
    """Sums or averages, over all ranks, tensors of which every rank has some rows.

    Gradients pass through to the rows: each gets the gradient of the row that it became part of.
    Rows of one index are added before they travel. What travels is rows and their indices, or the
    dense tensor where that is less; ops/kernels/collectives/all_reduce_rows_kernel.cc tells when.

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
