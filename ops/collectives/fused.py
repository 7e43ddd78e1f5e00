"""All-reduce of many tensors in buckets; each bucket's collective starts once its tensors exist.

    created    kernel 1   bias 1   kernel 2   bias 2   kernel 3   bias 3
    gradients  |-------- bucket 2 --------|   |------- bucket 1 -------|
               <------------------------------------------ back-propagation

Back-propagation computes the last layer's gradients first, so buckets are filled from the end of
the list. Bucket 1 is on the wire while the gradients of bucket 2 are still computed. After the last
gradient only about one bucket is left to reduce. Smaller buckets shorten that wait and need more
collectives.

Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", 2020.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from tfdist.ops.collectives.calls import resolve
from tfdist.ops.collectives.communicator import Communicator
from tfdist.ops.collectives.independent import independent_collectives
from tfdist.ops.collectives.naming import name_of
from tfdist.ops.collectives.reductions import all_reduce
from tfdist.ops.collectives.rows import all_reduce_rows, check_rows
from tfdist.ops.collectives.scaling import check_factor, scaled
from tfdist.ops.collectives.tuned_buckets import AUTO, reduce_in_tuned_buckets

# Measured: docs/guides/multi_worker.md, "How gradients travel".
DEFAULT_BYTES_PER_PACK = 4 << 20
NO_COMPRESSION = (
    "expected a size in bytes as bytes_per_pack with a compression, received 'auto': the loss of "
    "a compression depends on the bucket"
)


class DenseReduction(Protocol):
    """Reduces dense tensors in compressed form; `tfdist.compression` has implementations."""

    def all_reduce(
        self,
        tensors: Sequence[tf.Tensor],
        communicator: Communicator | None,
        reduce_op: str,
        *,
        label: str,
        timeout: float | None,
        variables: Sequence[tf.Variable | None] | None,
    ) -> list[tf.Tensor]:
        """Sums or averages a list of tensors over all ranks; as `all_reduce`."""


def fused_all_reduce(
    tensors: Sequence,
    communicator: Communicator | None = None,
    reduce_op: str = "sum",
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    bytes_per_pack: int | str = DEFAULT_BYTES_PER_PACK,
    label: str | None = None,
    timeout: float | None = None,
    compressor: DenseReduction | None = None,
    variables: Sequence[tf.Variable | None] | None = None,
) -> list:
    """Reduces a list of tensors over all ranks, in buckets that travel independently.

    In a `tf.function` a bucket's collective starts as soon as its last tensor exists, independently
    of the function's other ops.

    Args:
      tensors: tensors as for `all_reduce`, of mixed dtypes; or `tf.IndexedSlices`, which travel as
        rows unless the dense tensor is smaller. Shapes and dtypes must be the same on every rank,
        except the number of rows of slices. The order in which the variables were created is best.
      communicator: the ranks; `None` means the job's ranks.
      reduce_op: as for `all_reduce`. For `tf.IndexedSlices` "sum" or "mean".
      prescale_factor: as for `all_reduce`; applied before a compressor sees the tensors.
      postscale_factor: as for `all_reduce`.
      bytes_per_pack: a bucket is closed once it holds this number of bytes. Each dtype has buckets
        of its own. "auto" tries some sizes in the first executions of this call, and keeps the
        fastest; the results do not depend on the size.
      label: the collectives' name in error messages; `None` names each bucket by its tensors.
      timeout: seconds after which a collective fails; `None` means 600, 0 means never.
      compressor: from `tfdist.compression`; compresses dense tensors.
      variables: the variable of each gradient, by which the compressor recognizes it in the next
        step; `None` where it is unknown.

    Returns:
      A list of the same tensors and slices, reduced; the same values on every rank, bit for bit.
      Slices have each index once.

    Raises:
      ValueError: `bytes_per_pack` is neither positive nor "auto", or "auto" with a compressor.

    Raises also the errors of `all_reduce`.

    Example:
      `fused_all_reduce(tape.gradient(loss, model.trainable_variables), reduce_op="mean")`
    """
    api_name = "fused_all_reduce"
    check_bytes_per_pack(api_name, bytes_per_pack)
    if bytes_per_pack == AUTO and compressor is not None:
        raise ValueError(f"{api_name}: {NO_COMPRESSION}")
    communicator = resolve(communicator, api_name)
    check_factor(prescale_factor, "prescale_factor", api_name)
    check_factor(postscale_factor, "postscale_factor", api_name)
    values = [v if isinstance(v, tf.IndexedSlices) else tf.convert_to_tensor(v) for v in tensors]
    for value in values:
        if isinstance(value, tf.IndexedSlices):
            check_rows(value, reduce_op, api_name)
    values = scaled(values, prescale_factor, api_name)

    def reduce(bucket: list[int]) -> list[tf.Tensor]:
        inputs = [values[i] for i in bucket]
        options: dict[str, Any] = {"label": label or name_of(inputs), "timeout": timeout}
        if compressor is None:
            return all_reduce(inputs, communicator, reduce_op, **options)
        options["variables"] = variables and [variables[i] for i in bucket]
        return compressor.all_reduce(inputs, communicator, reduce_op, **options)

    if isinstance(bytes_per_pack, str):
        results: list = [None] * len(values)
        with independent_collectives():
            tuned = reduce_in_tuned_buckets(
                values, communicator, reduce_op, lambda v: label or name_of(v), timeout
            )
        for i, value in tuned.items():
            results[i] = value
    else:
        results = _reduce_in_buckets(values, bytes_per_pack, reduce)
    with independent_collectives():
        for i, value in enumerate(values):
            if isinstance(value, tf.IndexedSlices):
                name = label or name_of([value.values])
                results[i] = all_reduce_rows(
                    value, communicator, reduce_op, label=name, timeout=timeout
                )
    return scaled(results, postscale_factor, api_name)


def check_bytes_per_pack(owner: str, bytes_per_pack: object, minimum: int = 1) -> None:
    """Checks a size of buckets.

    Raises:
      ValueError: it is neither "auto" nor a number of at least `minimum`; names the `owner`.
    """
    is_bool = isinstance(bytes_per_pack, bool)
    if isinstance(bytes_per_pack, numbers.Integral) and not is_bool:
        is_valid = int(bytes_per_pack) >= minimum
    else:
        is_valid = bytes_per_pack == AUTO
    if not is_valid:
        raise ValueError(
            f"{owner}: expected a positive bytes_per_pack{' or 0' if minimum == 0 else ''}, or "
            f"'{AUTO}', received {bytes_per_pack!r}"
        )


def _reduce_in_buckets(
    values: Sequence, bytes_per_pack: int, reduce: Callable[[list[int]], list[tf.Tensor]]
) -> list:
    """Reduces the dense tensors of a list; `reduce` takes the positions of one bucket."""
    results: list = [None] * len(values)
    for bucket in buckets(values, bytes_per_pack):
        with independent_collectives():
            reduced = reduce(bucket)
        for i, value in zip(bucket, reduced, strict=True):
            results[i] = value
    return results


def buckets(values: Sequence, bytes_per_pack: int) -> list[list[int]]:
    """Returns the positions of the dense tensors, from last to first, in buckets of one dtype each.

    Args:
      values: tensors or variables.
      bytes_per_pack: a bucket is closed once it holds this number of bytes.
    """
    found: list[list[int]] = []
    filling: dict[tf.DType, tuple[list[int], int]] = {}
    for i in reversed(range(len(values))):
        value = values[i]
        if isinstance(value, tf.IndexedSlices):
            continue
        bucket, filled = filling.pop(value.dtype, ([], 0))
        if not bucket:
            found.append(bucket)
        bucket.append(i)
        elements = value.shape.num_elements()
        # A tensor of unknown size may be large.
        filled += bytes_per_pack if elements is None else elements * value.dtype.size
        if filled < bytes_per_pack:
            filling[value.dtype] = (bucket, filled)
    return found
