"""Collectives that concatenate, distribute or exchange rows of tensors."""

from __future__ import annotations

import tensorflow as tf

from tfdist._types import Nested, TensorLike, TensorsLike
from tfdist.ops import library
from tfdist.ops.collectives.calls import as_list, attributes, like, reduced_by_dtype, resolve
from tfdist.ops.collectives.communicator import Communicator
from tfdist.ops.collectives.reductions import reducible
from tfdist.ops.collectives.scaling import check_factor, scaled


def all_gather(
    tensors: TensorsLike,
    communicator: Communicator | None = None,
    *,
    label: str = "all_gather",
    timeout: float | None = None,
) -> Nested:
    """Concatenates every rank's tensor along the first dimension, in rank order.

    Args:
      tensors: a tensor or a list of tensors of at least one dimension, numeric, bool or string. The
        first dimension may differ between ranks, the others may not. A list travels as one message.
      communicator: the ranks; `None` means the job's ranks.
      label: the collective's name in error messages.
      timeout: as for `all_reduce`.

    Returns:
      Tensors of the same structure and dtypes, of shape `[sum of first dimensions, ...]`, the same
      on every rank.

    Raises the errors of `all_reduce`.
    """
    communicator = resolve(communicator, "all_gather")
    values = as_list(tensors)
    if not values:
        return []
    ops = library.graph_ops()
    strings = [value.dtype == tf.string for value in values]
    packed = [
        ops.tfdist_pack_strings(input=value) if is_string else value
        for value, is_string in zip(values, strings, strict=True)
    ]
    gathered, _ = ops.tfdist_all_gather(inputs=packed, **attributes(communicator, label, timeout))
    results = list(gathered)
    for i, value in enumerate(values):
        if strings[i]:
            results[i] = ops.tfdist_unpack_strings(packed=results[i], concatenate=True, label=label)
            results[i] = _with_rows(results[i], value, None)
        if communicator.fixed_size == 1:
            results[i] = _with_rows(results[i], value, value.shape[0])
    return like(tensors, results)


def gather(
    tensors: TensorsLike,
    communicator: Communicator | None = None,
    root: int = 0,
    *,
    label: str = "gather",
    timeout: float | None = None,
) -> Nested:
    """Concatenates every rank's tensor along the first dimension, on rank `root` alone.

    Args:
      tensors: as for `all_gather`, without strings.
      communicator: the ranks; `None` means the job's ranks.
      root: the rank that gets the result.
      label: the collective's name in error messages.
      timeout: as for `all_reduce`.

    Returns:
      Tensors of the same structure and dtypes: on rank `root` of shape `[sum of first dimensions,
      ...]`, on the others of shape `[0, ...]`.

    Raises the errors of `all_reduce`.
    """
    communicator = resolve(communicator, "gather")
    values = as_list(tensors)
    if not values:
        return []
    gathered, _ = library.graph_ops().tfdist_gather(
        inputs=values, root=root, **attributes(communicator, label, timeout)
    )
    return like(tensors, list(gathered))


def scatter(
    tensors: TensorsLike,
    communicator: Communicator | None = None,
    root: int = 0,
    *,
    label: str = "scatter",
    timeout: float | None = None,
) -> Nested:
    """Distributes the rows of a tensor on rank `root` over all ranks.

    Rank 0 gets the first rows. If the rows do not divide evenly, the first ranks get one row more
    than the others: 7 rows over 3 ranks are 3, 2 and 2.

    Args:
      tensors: a tensor or a list of tensors of at least one dimension, numeric or bool. On ranks
        other than `root` only the dtype and the dimensions after the first matter;
        `tf.zeros([0, ...])` is enough. A list travels as one message.
      communicator: the ranks; `None` means the job's ranks.
      root: the rank whose rows are distributed.
      label: the collective's name in error messages.
      timeout: as for `all_reduce`.

    Returns:
      Tensors of the same structure and dtypes, of shape `[this rank's rows, ...]`.

    Raises the errors of `all_reduce`.
    """
    communicator = resolve(communicator, "scatter")
    values = as_list(tensors)
    if not values:
        return []
    parts = library.graph_ops().tfdist_scatter(
        inputs=values, rows=_equally(), root=root, **attributes(communicator, label, timeout)
    )
    results = list(parts)
    if communicator.rank == root:
        results = [_own_part(*pair, communicator) for pair in zip(results, values, strict=True)]
    return like(tensors, results)


def reduce_scatter(
    tensors: TensorsLike,
    communicator: Communicator | None = None,
    reduce_op: str = "sum",
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    label: str = "reduce_scatter",
    timeout: float | None = None,
) -> Nested:
    """Reduces tensors over all ranks and gives each rank its part of the rows.

    Rank 0 gets the first rows. If the rows do not divide evenly, the first ranks get one row more
    than the others: 7 rows over 3 ranks are 3, 2 and 2.

    Args:
      tensors: as for `all_reduce`, of at least one dimension.
      communicator: the ranks; `None` means the job's ranks.
      reduce_op: as for `all_reduce`.
      prescale_factor: as for `all_reduce`.
      postscale_factor: as for `all_reduce`.
      label: the collective's name in error messages.
      timeout: as for `all_reduce`.

    Returns:
      Tensors of the same structure and dtypes, of shape `[this rank's rows, ...]`.

    Raises the errors of `all_reduce`.
    """
    api_name = "reduce_scatter"
    communicator = resolve(communicator, api_name)
    check_factor(prescale_factor, "prescale_factor", api_name)
    check_factor(postscale_factor, "postscale_factor", api_name)
    values = scaled(reducible(tensors, reduce_op, api_name), prescale_factor, api_name)

    def reduce(inputs):
        return library.graph_ops().tfdist_reduce_scatter(
            inputs=inputs,
            rows=_equally(),
            reduce_op=reduce_op,
            **attributes(communicator, label, timeout),
        )

    parts = reduced_by_dtype(values, reduce)
    results = [_own_part(*pair, communicator) for pair in zip(parts, values, strict=True)]
    return like(tensors, scaled(results, postscale_factor, api_name))


def all_to_all(
    tensors: TensorsLike,
    communicator: Communicator | None = None,
    splits: TensorLike | None = None,
    *,
    label: str = "all_to_all",
    timeout: float | None = None,
) -> Nested:
    """Sends a part of a tensor's rows to each rank; concatenates received rows in rank order.

    Args:
      tensors: a tensor or a list of tensors of at least one dimension, numeric or bool. A list
        travels as one message.
      communicator: the ranks; `None` means the job's ranks.
      splits: int64 of shape `[size]`: the number of rows for each rank, in rank order; for a list
        of tensors a list of splits. `None` sends the same number to each rank: then the number of
        ranks must divide the first dimension, which may differ between ranks.
      label: the collective's name in error messages.
      timeout: as for `all_reduce`.

    Returns:
      Without `splits` tensors of the same structure, of shape `[received rows, ...]`. With `splits`
      a pair: these tensors, and for each tensor int64 of shape `[size]`: the number of rows
      received from each rank.

    Raises:
      ValueError: `splits` do not fit the tensors.
      tf.errors.InvalidArgumentError: the splits do not add up to the rows; or, on all ranks, a rank
        without splits has a number of rows that the number of ranks does not divide; or as
        `all_reduce`.
      Others: as `all_reduce`.
    """
    communicator = resolve(communicator, "all_to_all")
    values = as_list(tensors)
    if not values:
        return [] if splits is None else ([], [])
    exchanged, received = library.graph_ops().tfdist_all_to_all(
        inputs=values,
        rows=_equally() if splits is None else _lines(tensors, splits, communicator),
        **attributes(communicator, label, timeout),
    )
    exchanged = list(exchanged)
    if splits is None:
        if communicator.fixed_size == 1:
            pairs = zip(exchanged, values, strict=True)
            exchanged = [_with_rows(*pair, pair[1].shape[0]) for pair in pairs]
        return like(tensors, exchanged)
    counts = [received[:, i] for i in range(len(values))]
    for count in counts:
        if tf.is_symbolic_tensor(count):
            count.set_shape([communicator.fixed_size])
    return like(tensors, exchanged), like(tensors, counts)


def _equally() -> tf.Tensor:
    """The kernels' encoding of equal parts."""
    return tf.zeros([0, 0], tf.int64)


def _lines(tensors: TensorsLike, splits: TensorLike, communicator: Communicator) -> tf.Tensor:
    """The splits of all tensors as int64 of shape `[size, number of tensors]`."""
    several = isinstance(tensors, list | tuple)
    columns = splits if several else [splits]
    expected = len(tensors) if several else 1
    if several and (not isinstance(splits, list | tuple) or len(splits) != expected):
        raise ValueError(
            f"all_to_all: expected splits for each of {expected} tensors, received {splits!r}"
        )
    columns = [tf.cast(tf.convert_to_tensor(column), tf.int64) for column in columns]
    for column in columns:
        if not column.shape.is_compatible_with([communicator.fixed_size]):
            raise ValueError(
                f"all_to_all: expected splits of shape ({communicator.size},), one number for each "
                f"rank, received shape {column.shape}"
            )
    return tf.stack(columns, axis=1)


def _own_part(part: tf.Tensor, whole: tf.Tensor, communicator: Communicator) -> tf.Tensor:
    """Sets the static shape of a rank's part of the rows of `whole`."""
    rows = whole.shape[0] if whole.shape.rank else None
    if communicator.resizable:
        rows = None
    elif rows is not None:
        rows = rows // communicator.size + (communicator.rank < rows % communicator.size)
    return _with_rows(part, whole, rows)


def _with_rows(result: tf.Tensor, value: tf.Tensor, rows: int | None) -> tf.Tensor:
    """Sets the static shape of `result`: `rows` rows, and the other dimensions of `value`."""
    if tf.is_symbolic_tensor(result) and value.shape.rank:
        result.set_shape([rows, *value.shape[1:]])
    return result
