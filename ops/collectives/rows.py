"""All-reduce of `tf.IndexedSlices`: every rank has some rows of a tensor."""

from __future__ import annotations

import tensorflow as tf

from tfdist.ops import library
from tfdist.ops.collectives.calls import attributes, resolve
from tfdist.ops.collectives.communicator import Communicator

_REDUCIBLE_ROWS = (
    tf.float16,
    tf.bfloat16,
    tf.float32,
    tf.float64,
    tf.int8,
    tf.int16,
    tf.int32,
    tf.int64,
    tf.uint8,
)


def check_rows(slices: tf.IndexedSlices, reduce_op: str, api_name: str) -> None:
    """Checks that the rows of slices can be reduced by `reduce_op`.

    Args:
      slices: the slices to reduce.
      reduce_op: the reduction.
      api_name: the public function that was called, for messages.

    Raises:
      TypeError: the rows' dtype cannot be reduced.
      ValueError: `reduce_op` is neither "sum" nor "mean".
    """
    if reduce_op not in ("sum", "mean"):
        raise ValueError(
            f"{api_name}: expected reduce_op 'sum' or 'mean' for tf.IndexedSlices, whose missing "
            f"rows are zeros, received {reduce_op!r}; tf.convert_to_tensor makes a dense tensor of "
            "them"
        )
    if slices.dtype not in _REDUCIBLE_ROWS:
        expected = ", ".join(dtype.name for dtype in _REDUCIBLE_ROWS)
        raise TypeError(
            f"{api_name}: expected tf.IndexedSlices of {expected}, received {slices.dtype.name}"
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

    The op is differentiable: each row gets the gradient of the reduced row that it contributed to.
    Rows of one index are added before they travel. The ranks exchange rows and their indices, or
    the dense tensor if that is smaller; ops/kernels/collectives/all_reduce_rows_kernel.cc has the
    condition.

    Args:
      slices: rows of float16, bfloat16, float32, float64, int8, int16, int32, int64 or uint8. The
        number of rows may differ between ranks; dtype and shape may not.
      communicator: the ranks; `None` means the job's ranks.
      reduce_op: "sum" or "mean". The mean is over all ranks, including ranks without the row.
      label: the collective's name in error messages.
      timeout: as for `all_reduce`.

    Returns:
      The rows that any rank has, each once, in the same order on every rank.

    Raises the errors of `all_reduce`.
    """
    shape = slices.dense_shape
    if shape is not None:  # callers may pass a tuple, which TensorFlow cannot nest
        shape = tf.convert_to_tensor(shape)
    ids, rows = library.graph_ops().tfdist_all_reduce_rows(
        ids=slices.indices,
        rows=slices.values,
        table_rows=tf.constant(-1, tf.int64) if shape is None else tf.cast(shape[0], tf.int64),
        reduce_op=reduce_op,
        **attributes(resolve(communicator, "fused_all_reduce"), label, timeout),
    )
    return tf.IndexedSlices(rows, ids, shape)
