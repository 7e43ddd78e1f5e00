"""Collectives on tensors. They run eagerly, in a `tf.function` and in a v1 graph."""

import tensorflow as tf

from tfdist.ops import library
from tfdist.ops.calls import attributes, resolve
from tfdist.ops.communicator import Communicator


def all_reduce(
    tensors,
    communicator: Communicator | None = None,
    reduce_op: str = "sum",
    *,
    label: str = "all_reduce",
    timeout: float | None = None,
):
    """Sums or averages tensors over all ranks, a list of them in one fused pass without packing.

    A ring all-reduce: every rank sends 2(N-1)/N of the bytes (Patarasuk and Yuan, 2009).

    Args:
      tensors: a tensor or a list of tensors of float16, bfloat16, float32, float64, int32 or int64;
        the same shapes on every rank. Tensors of one dtype travel together.
      communicator: the ranks; `None` means those of the job.
      reduce_op: "sum" or "mean". The mean of integers truncates toward zero, as `tf.reduce_mean`
        does.
      label: how error messages call it.
      timeout: seconds after which the op fails; `None` means 600, 0 means never.

    Returns:
      Tensors of the same structure, shapes and dtypes: the same values on every rank, bit for bit.

    Raises:
      tf.errors.InvalidArgumentError: the ranks disagree on the collective, its shapes or dtypes;
        names both.
      tf.errors.UnavailableError: a rank died or left.
      tf.errors.DeadlineExceededError: a rank did not answer, or did not start the collective, in
        time.
    """
    if not isinstance(tensors, list | tuple):
        return all_reduce([tensors], communicator, reduce_op, label=label, timeout=timeout)[0]
    communicator = resolve(communicator, "all_reduce")
    values = [tf.convert_to_tensor(t) for t in tensors]
    results = [None] * len(values)
    for dtype in dict.fromkeys(v.dtype for v in values):
        positions = [i for i, v in enumerate(values) if v.dtype == dtype]
        reduced = library.graph_ops().tfdist_all_reduce(
            inputs=[values[i] for i in positions],
            reduce_op=reduce_op,
            **attributes(communicator, label, timeout),
        )
        for i, value in zip(positions, reduced, strict=True):
            results[i] = value
    return results


def all_gather(
    tensor,
    communicator: Communicator | None = None,
    *,
    label: str = "all_gather",
    timeout: float | None = None,
) -> tf.Tensor:
    """Concatenates every rank's tensor along the first dimension, in rank order.

    Args:
      tensor: at least one dimension, numeric or bool. The first dimension may differ between ranks,
        the others may not.
      communicator: the ranks; `None` means those of the job.
      label: how error messages call it.
      timeout: as for `all_reduce`.

    Returns:
      A tensor of shape `[sum of first dimensions, ...]`, the same on every rank.

    Raises:
      As `all_reduce`.
    """
    communicator = resolve(communicator, "all_gather")
    return library.graph_ops().tfdist_all_gather(
        input=tensor, **attributes(communicator, label, timeout)
    )


def broadcast(
    tensors,
    communicator: Communicator | None = None,
    root: int = 0,
    *,
    label: str = "broadcast",
    timeout: float | None = None,
):
    """Gives every rank the value that a tensor, or each of a list, has on rank `root`.

    Args:
      tensors: a tensor or a list of them, numeric or bool; the same shapes and dtypes on every
        rank.
      communicator: the ranks; `None` means those of the job.
      root: the rank whose value is taken.
      label: how error messages call it.
      timeout: as for `all_reduce`.

    Returns:
      Tensors of the same structure, shapes and dtypes.

    Raises:
      As `all_reduce`.
    """
    communicator = resolve(communicator, "broadcast")
    if isinstance(tensors, list | tuple):
        return [
            broadcast(tensor, communicator, root, label=label, timeout=timeout)
            for tensor in tensors
        ]
    return library.graph_ops().tfdist_broadcast(
        input=tensors, root=root, **attributes(communicator, label, timeout)
    )
