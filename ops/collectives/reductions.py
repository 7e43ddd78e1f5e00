"""Reductions, broadcasts and barriers. They run eagerly, in a `tf.function` and in a v1 graph."""

from __future__ import annotations

import tensorflow as tf

from tfdist._types import Nested, TensorsLike
from tfdist.ops import library
from tfdist.ops.collectives.calls import (
    as_list,
    attributes,
    group_outputs,
    like,
    reduced_by_dtype,
    resolve,
)
from tfdist.ops.collectives.communicator import Communicator
from tfdist.ops.collectives.rows import all_reduce_rows, check_rows
from tfdist.ops.collectives.scaling import check_factor, scaled

REDUCE_OPS = ("sum", "mean", "min", "max", "product")
REDUCIBLE = (
    tf.float16,
    tf.bfloat16,
    tf.float32,
    tf.float64,
    tf.int8,
    tf.int16,
    tf.int32,
    tf.int64,
    tf.uint8,
    tf.bool,
)


def all_reduce(
    tensors: TensorsLike,
    communicator: Communicator | None = None,
    reduce_op: str = "sum",
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    label: str = "all_reduce",
    timeout: float | None = None,
) -> Nested:
    """Reduces tensors over all ranks, a list of them in one fused pass without packing.

    Large tensors use a ring: every rank sends 2(N-1)/N of the bytes (Patarasuk and Yuan, 2009).

    Args:
      tensors: a tensor or a list of tensors of float16, bfloat16, float32, float64, int8, int16,
        int32, int64, uint8 or bool; the same shapes on every rank. Tensors of one dtype travel
        together. Or `tf.IndexedSlices` of the same dtypes but bool, with any number of rows on each
        rank; only the rows travel.
      communicator: the ranks; `None` means the job's ranks.
      reduce_op: "sum", "mean", "min", "max" or "product". Integers wrap; their mean truncates
        toward zero, as `tf.reduce_mean` does. For bools "sum" and "max" mean "or", "min" and
        "product" mean "and", and there is no mean. For `tf.IndexedSlices` "sum" or "mean".
      prescale_factor: values are multiplied by it before the reduction; the same on all ranks.
        An integral factor multiplies integers as integers; another factor multiplies them in
        float64, and the product is truncated toward zero.
      postscale_factor: results are multiplied by it, in the same way.
      label: the collective's name in error messages.
      timeout: seconds after which the op fails; `None` means 600, 0 means never.

    Returns:
      Tensors of the same structure, shapes and dtypes: the same values on every rank, bit for bit.
      For `tf.IndexedSlices` the rows that any rank has, each index once; a mean is over all ranks.

    Raises:
      TypeError: a dtype cannot be reduced or scaled; a factor is not a number.
      ValueError: `reduce_op` is unknown, or not defined for `tf.IndexedSlices`; a factor is not
        finite.
      tfdist.errors.NotInitializedError: no communicator is given, and the process has no job yet.
      tf.errors.InvalidArgumentError: the ranks disagree on the collective, its shapes or dtypes;
        the message names both.
      tf.errors.UnavailableError: a rank died or left.
      tf.errors.DeadlineExceededError: a rank did not answer, or did not start the collective, in
        time.
    """
    api_name = "all_reduce"
    communicator = resolve(communicator, api_name)
    check_factor(prescale_factor, "prescale_factor", api_name)
    check_factor(postscale_factor, "postscale_factor", api_name)
    values = list(tensors) if isinstance(tensors, list | tuple) else [tensors]
    slices = {i: value for i, value in enumerate(values) if isinstance(value, tf.IndexedSlices)}
    dense = [i for i in range(len(values)) if i not in slices]
    given = reducible([values[i] for i in dense], reduce_op, api_name)
    for value in slices.values():
        check_rows(value, reduce_op, api_name)

    def reduce(inputs):
        return library.graph_ops().tfdist_all_reduce(
            inputs=inputs, reduce_op=reduce_op, **attributes(communicator, label, timeout)
        )

    reduced = reduced_by_dtype(scaled(given, prescale_factor, api_name), reduce)
    results = dict(zip(dense, reduced, strict=True))
    for i, value in slices.items():
        (rows,) = scaled([value], prescale_factor, api_name)
        results[i] = all_reduce_rows(rows, communicator, reduce_op, label=label, timeout=timeout)
    ordered = [results[i] for i in range(len(values))]
    return like(tensors, scaled(ordered, postscale_factor, api_name))


def reduce(
    tensors: TensorsLike,
    communicator: Communicator | None = None,
    root: int = 0,
    reduce_op: str = "sum",
    *,
    label: str = "reduce",
    timeout: float | None = None,
) -> Nested:
    """Reduces tensors over all ranks, for rank `root` alone.

    Args:
      tensors: as for `all_reduce`.
      communicator: the ranks; `None` means the job's ranks.
      root: the rank that gets the result.
      reduce_op: as for `all_reduce`.
      label: the collective's name in error messages.
      timeout: as for `all_reduce`.

    Returns:
      Tensors of the same structure, shapes and dtypes: the reduction on rank `root`, zeros on the
      others.

    Raises the errors of `all_reduce`.
    """
    communicator = resolve(communicator, "reduce")
    values = reducible(tensors, reduce_op, "reduce")

    def reduce_to_root(inputs):
        return library.graph_ops().tfdist_reduce(
            inputs=inputs,
            reduce_op=reduce_op,
            root=root,
            **attributes(communicator, label, timeout),
        )

    return like(tensors, reduced_by_dtype(values, reduce_to_root))


def broadcast(
    tensors: TensorsLike,
    communicator: Communicator | None = None,
    root: int = 0,
    *,
    label: str = "broadcast",
    timeout: float | None = None,
) -> Nested:
    """Sends the values that tensors have on rank `root` to every rank.

    On the root it ends when all ranks have started it, so that a mismatch with another rank raises
    there. Another rank may end as soon as it has received its values; a mismatch then raises in its
    next collective.

    Args:
      tensors: a tensor or a list of tensors, numeric, bool or string; the same shapes and dtypes on
        every rank. A list travels as one message, plus one for its strings.
      communicator: the ranks; `None` means the job's ranks.
      root: the rank whose values are sent.
      label: the collective's name in error messages.
      timeout: as for `all_reduce`.

    Returns:
      Tensors of the same structure, shapes and dtypes.

    Raises the errors of `all_reduce`.
    """
    communicator = resolve(communicator, "broadcast")
    values = as_list(tensors)
    results = list(values)
    plain = [i for i, value in enumerate(values) if value.dtype != tf.string]
    strings = [i for i, value in enumerate(values) if value.dtype == tf.string]
    if plain:
        sent = library.graph_ops().tfdist_broadcast(
            inputs=[values[i] for i in plain],
            root=root,
            **attributes(communicator, label, timeout),
        )
        for i, value in zip(plain, group_outputs(sent), strict=True):
            results[i] = value
    if strings:
        sent = _broadcast_strings([values[i] for i in strings], communicator, root, label, timeout)
        for i, value in zip(strings, sent, strict=True):
            results[i] = value
    return like(tensors, results)


def barrier(
    communicator: Communicator | None = None,
    *,
    label: str = "barrier",
    timeout: float | None = None,
) -> tf.Operation | None:
    """Waits until every rank has called it.

    Args:
      communicator: the ranks; `None` means the job's ranks.
      label: the collective's name in error messages.
      timeout: as for `all_reduce`.

    Returns:
      None; in a graph the operation that waits.

    Raises the errors of `all_reduce`.
    """
    communicator = resolve(communicator, "barrier")
    return library.graph_ops().tfdist_barrier(**attributes(communicator, label, timeout))


def join(
    communicator: Communicator | None = None,
    *,
    label: str = "join",
    timeout: float | None = None,
) -> int | tf.Tensor:
    """Takes part in the collectives of the other ranks, without data, until all ranks have joined.

    For a rank that has run out of data before the others, like Horovod's `join`. The rank
    contributes zeros to sums and means (a mean is still divided by the number of all ranks) and no
    rows to gathers, and passes barriers. The others must not broadcast or scatter from a rank that
    has joined, nor call `all_to_all`: that fails on all ranks.

    Args:
      communicator: the ranks; `None` means the job's ranks.
      label: the collective's name in error messages.
      timeout: seconds until all ranks have joined; as for `all_reduce`.

    Returns:
      The rank that joined last (the highest of several that joined at the same time): an int, or in
      a graph an int32 scalar.

    Raises the errors of `all_reduce`.
    """
    communicator = resolve(communicator, "join")
    last = library.graph_ops().tfdist_join(**attributes(communicator, label, timeout))
    return last if tf.is_symbolic_tensor(last) else int(last)


def reducible(tensors: TensorsLike, reduce_op: str, api_name: str) -> list[tf.Tensor]:
    """Returns tensors as a list after checking that they can be reduced by `reduce_op`.

    Raises:
      TypeError: a dtype cannot be reduced.
      ValueError: `reduce_op` is unknown.
    """
    if reduce_op not in REDUCE_OPS:
        raise ValueError(
            f"{api_name}: expected reduce_op to be one of {', '.join(REDUCE_OPS)}, received "
            f"{reduce_op!r}"
        )
    values = as_list(tensors)
    for value in values:
        if value.dtype not in REDUCIBLE:
            expected = ", ".join(dtype.name for dtype in REDUCIBLE)
            raise TypeError(f"{api_name}: expected {expected}, received {value.dtype.name}")
        if value.dtype == tf.bool and reduce_op == "mean":
            raise TypeError(f"{api_name}: expected numbers for a mean, received bool")
    return values


def _broadcast_strings(
    values: list[tf.Tensor],
    communicator: Communicator,
    root: int,
    label: str,
    timeout: float | None,
) -> list[tf.Tensor]:
    """Broadcasts by an all-gather with data on the root only: other ranks do not know the sizes."""
    if not 0 <= root < communicator.size:
        raise ValueError(
            f"broadcast '{label}': expected a root from 0 to {communicator.size - 1}, received "
            f"{root}"
        )
    ops = library.graph_ops()
    mine = communicator.rank == root
    packed = [
        ops.tfdist_pack_strings(input=value) if mine else tf.zeros([0], tf.uint8)
        for value in values
    ]
    sent, _ = ops.tfdist_all_gather(inputs=packed, **attributes(communicator, label, timeout))
    return [
        tf.ensure_shape(
            ops.tfdist_unpack_strings(packed=bytes_, concatenate=False, label=label), value.shape
        )
        for bytes_, value in zip(sent, values, strict=True)
    ]
