"""Many tensors reduced in few collectives, each of which starts as soon as its own tensors exist.

    created    kernel 1   bias 1   kernel 2   bias 2   kernel 3   bias 3
    gradients  |-------- bucket 2 --------|   |------- bucket 1 -------|
               <------------------------------------------ back-propagation

Back-propagation finds the last layer's gradients first, so buckets are filled from the end of the
list. Bucket 1 is on the wire while the gradients of bucket 2 are still computed; what is left to
wait for after the last gradient is about one bucket. Smaller buckets leave less of that and cost
more collectives.

Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", 2020.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tfdist.ops.collectives.calls import resolve
from tfdist.ops.collectives.communicator import Communicator
from tfdist.ops.collectives.reductions import all_reduce
from tfdist.ops.collectives.rows import all_reduce_rows, check_rows
from tfdist.ops.collectives.scaling import check_factor, scaled

if TYPE_CHECKING:
    from tfdist.compression import Compressor

# Measured: docs/multi_worker.md, "How gradients travel".
DEFAULT_BYTES_PER_PACK = 4 << 20


def fused_all_reduce(
    tensors: Sequence,
    communicator: Communicator | None = None,
    reduce_op: str = "sum",
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    bytes_per_pack: int = DEFAULT_BYTES_PER_PACK,
    label: str | None = None,
    timeout: float | None = None,
    compressor: Compressor | None = None,
    variables: Sequence[tf.Variable | None] | None = None,
) -> list:
    """Reduces a list of tensors over all ranks, in buckets that travel independently.

    In a `tf.function` a bucket leaves as soon as its last tensor exists, whatever else the function
    does before or after it.

    Args:
      tensors: tensors as for `all_reduce`, of any dtypes mixed; or `tf.IndexedSlices`, which travel
        as rows, unless that would be more than the dense tensor. All must be alike on every rank,
        but for the rows of slices. Best in the order in which the variables were created.
      communicator: the ranks; `None` means those of the job.
      reduce_op: as for `all_reduce`. For `tf.IndexedSlices` "sum" or "mean".
      prescale_factor: as for `all_reduce`; applied before a compressor sees the tensors.
      postscale_factor: as for `all_reduce`.
      bytes_per_pack: a bucket is closed once it holds that many bytes. Each dtype has its own.
      label: how error messages call it; `None` names each bucket by its tensors.
      timeout: seconds after which a collective fails; `None` means 600, 0 means never.
      compressor: of `tfdist.compression`; makes dense tensors smaller on their way.
      variables: what the tensors are gradients of, by which the compressor knows them again; `None`
        stands for what is not known.

    Returns:
      A list of the same tensors and slices, reduced; the same values on every rank, bit for bit.
      Slices have each row once.

    Raises:
      ValueError: `bytes_per_pack` is not positive.
      As `all_reduce`.

    Example:
      `fused_all_reduce(tape.gradient(loss, model.trainable_variables), reduce_op="mean")`
    """
    if bytes_per_pack <= 0:
        raise ValueError(f"expected a positive bytes_per_pack, received {bytes_per_pack}")
    asked = "fused_all_reduce"
    communicator = resolve(communicator, asked)
    check_factor(prescale_factor, "prescale_factor", asked)
    check_factor(postscale_factor, "postscale_factor", asked)
    values = [v if isinstance(v, tf.IndexedSlices) else tf.convert_to_tensor(v) for v in tensors]
    for value in values:
        if isinstance(value, tf.IndexedSlices):
            check_rows(value, reduce_op, asked)
    values = scaled(values, prescale_factor, asked)

    def reduce(bucket: list[int]) -> list[tf.Tensor]:
        pack = [values[i] for i in bucket]
        options = {"label": label or name_of(pack), "timeout": timeout}
        if compressor is None:
            return all_reduce(pack, communicator, reduce_op, **options)
        options["variables"] = variables and [variables[i] for i in bucket]
        return compressor.all_reduce(pack, communicator, reduce_op, **options)

    results = _reduce_in_buckets(values, bytes_per_pack, reduce)
    with independent_collectives():
        for i, value in enumerate(values):
            if isinstance(value, tf.IndexedSlices):
                name = label or name_of([value.values])
                results[i] = all_reduce_rows(
                    value, communicator, reduce_op, label=name, timeout=timeout
                )
    return scaled(results, postscale_factor, asked)


def _reduce_in_buckets(
    values: Sequence, bytes_per_pack: int, reduce: Callable[[list[int]], list[tf.Tensor]]
) -> list:
    """Reduces the dense tensors of a list; `reduce` gets the positions of a bucket."""
    results: list = [None] * len(values)
    for bucket in _buckets(values, bytes_per_pack):
        with independent_collectives():
            reduced = reduce(bucket)
        for i, value in zip(bucket, reduced, strict=True):
            results[i] = value
    return results


def _buckets(values: list, bytes_per_pack: int) -> list[list[int]]:
    """Positions of the dense tensors, from the last one on, in buckets of one dtype each."""
    buckets: list[list[int]] = []
    filling: dict[tf.DType, tuple[list[int], int]] = {}
    for i in reversed(range(len(values))):
        value = values[i]
        if isinstance(value, tf.IndexedSlices):
            continue
        bucket, filled = filling.pop(value.dtype, ([], 0))
        if not bucket:
            buckets.append(bucket)
        bucket.append(i)
        elements = value.shape.num_elements()
        # A tensor that nobody knows the size of may be large.
        filled += bytes_per_pack if elements is None else elements * value.dtype.size
        if filled < bytes_per_pack:
            filling[value.dtype] = (bucket, filled)
    return buckets


@contextlib.contextmanager
def independent_collectives() -> Iterator[None]:
    """Takes collectives made meanwhile out of the order that TensorFlow gives to ops with effects.

    In a function each would start only after the one before has ended. Ours find each other by key
    (see tags.py), in whatever order they start.
    """
    if tf.executing_eagerly():
        yield
        return
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    yield
    if graph.experimental_acd_manager is not None:
        for op in graph.get_operations()[before:]:
            if op.op_def.is_distributed_communication:
                graph.experimental_acd_manager.run_independently(op)


def name_of(tensors: list[tf.Tensor]) -> str:
    """Names what a collective carries: "Adam/gradient (and 7 more)"."""
    first = tensors[0]
    name = first.name.partition(":")[0] if tf.is_symbolic_tensor(first) else "a tensor"
    return name if len(tensors) == 1 else f"{name} (and {len(tensors) - 1} more)"
