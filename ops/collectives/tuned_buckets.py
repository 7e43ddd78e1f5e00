"""Buckets whose size is found while the job trains: `bytes_per_pack="auto"`.

A list of tensors is cut into blocks of about 1 MB. Each block is an op of the graph; how many
blocks travel together is an input of the step, so that trying another size needs no new trace:

    list        last variable ........................ first variable
    blocks      |  0  |  1  |  2  |  3  |  4  |  5  |tail|
    1 MB        [  0  ][  1 ][  2 ][  3 ][  4 ][  5 ][   ]
    4 MB        [  0     1     2     3  ][  4     5 ][   ]

The sums do not depend on the size. A value's place in the list decides in which order the ranks'
values are added (ops/core/algorithms/stripes.h), and which algorithm adds them. The last tensors,
of at most 32 KB together, are always a bucket of their own, which small buffers' algorithm reduces.
All others travel by a ring, however small their bucket is.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import logging
import math
import threading
from collections.abc import Callable, Iterable, Sequence

import tensorflow as tf

from tfdist.ops import library
from tfdist.ops.collectives import collective_keys
from tfdist.ops.collectives.calls import attributes, group_outputs
from tfdist.ops.collectives.communicator import Communicator
from tfdist.ops.collectives.reductions import all_reduce, reducible

AUTO = "auto"

SIZES = {"1 MB": 1 << 20, "4 MB": 4 << 20, "16 MB": 16 << 20, "64 MB": 64 << 20}
_INITIAL = "4 MB"
_BLOCK_BYTES = min(SIZES.values())
# The size up to which selector.cc chooses recursive doubling.
_TAIL_BYTES = 32 << 10

_FUNCTIONS = library.CFunctions(
    "tfdist_", plain={"bucket_size_chosen": [ctypes.c_char_p, ctypes.c_size_t]}
)
_TEXT_BYTES = 1024
_log = logging.getLogger("tfdist.communication")


@dataclasses.dataclass(frozen=True)
class SizedBucket:
    """A bucket of one size.

    Attributes:
      first: its first block.
      count: the number of its blocks.
      begin: the element of the list of its dtype at which it begins.
    """

    first: int
    count: int
    begin: int


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a list of tensors is cut.

    Attributes:
      blocks: the positions of each block's tensors, which have one dtype.
      names: the sizes that differ for this list, such as "4 MB".
      buckets: of each size, the bucket of each block.
      alone: positions of tensors that travel at any size as they are: the tails, and each tensor of
        unknown size.
    """

    blocks: list[list[int]]
    names: list[str]
    buckets: list[list[SizedBucket]]
    alone: list[list[int]]

    @property
    def initial(self) -> int:
        """The index of the size that the search begins with."""
        return self.names.index(_INITIAL)

    @classmethod
    def of(cls, tensors: Iterable[tuple[int, tf.DType, int | None]]) -> Layout:
        """Cuts a list.

        Args:
          tensors: the position, the dtype and the number of elements of each tensor, in the order
            in which the buckets are filled; `None` for an unknown number.
        """
        by_dtype: dict[tf.DType, list[tuple[int, int]]] = {}
        alone = []
        for position, dtype, elements in tensors:
            if elements is None:
                alone.append([position])
            else:
                by_dtype.setdefault(dtype, []).append((position, elements))
        blocks: list[list[int]] = []
        begins: list[int] = []  # element at which each block begins
        sizes: list[tuple[tf.DType, int]] = []  # dtype and bytes of each block
        for dtype, listed in by_dtype.items():
            tail = _tail(listed, dtype.size)
            if tail < len(listed):
                alone.append([position for position, _ in listed[tail:]])
            begin = elements = 0
            block: list[int] = []
            for at, (position, count) in enumerate(listed[:tail], 1):
                block.append(position)
                elements += count
                if elements * dtype.size >= _BLOCK_BYTES or at == tail:
                    blocks.append(block)
                    begins.append(begin)
                    sizes.append((dtype, elements * dtype.size))
                    begin, elements, block = begin + elements, 0, []
        names, buckets = _distinct(begins, sizes)
        return cls(blocks, names, buckets, alone)


def reduce_in_tuned_buckets(
    values: Sequence,
    communicator: Communicator,
    reduce_op: str,
    label_of: Callable[[Sequence], str],
    timeout: float | None,
) -> dict[int, tf.Tensor]:
    """Reduces the dense tensors of a list in buckets of a size that is tuned.

    Args:
      values: tensors and slices, in the order of their variables' creation.
      communicator: the ranks.
      reduce_op: as for `all_reduce`.
      label_of: returns the label of a collective of some of the tensors.
      timeout: as for `all_reduce`.

    Returns:
      The results by their positions.
    """
    dense = [i for i, v in reversed(list(enumerate(values))) if not isinstance(v, tf.IndexedSlices)]
    reducible([values[i] for i in dense], reduce_op, "fused_all_reduce")
    layout = Layout.of((i, values[i].dtype, values[i].shape.num_elements()) for i in dense)
    results: dict[int, tf.Tensor] = {}
    if layout.blocks:
        _reduce_blocks(layout, values, communicator, reduce_op, label_of, timeout, results)
    for positions in layout.alone:
        inputs = [values[i] for i in positions]
        reduced = all_reduce(
            inputs, communicator, reduce_op, label=label_of(inputs), timeout=timeout
        )
        results.update(zip(positions, reduced, strict=True))
    return results


def _reduce_blocks(
    layout: Layout,
    values: Sequence,
    communicator: Communicator,
    reduce_op: str,
    label_of: Callable[[Sequence], str],
    timeout: float | None,
    results: dict[int, tf.Tensor],
) -> None:
    first = [values[i] for i in layout.blocks[0]]
    size = _size_of_this_step(layout, first, communicator, label_of(first), timeout)
    blocks, buckets = layout.blocks, layout.buckets
    if tf.executing_eagerly():
        # An op ends before the next one starts, so each bucket is one block.
        chosen = buckets[int(size)]
        kept = sorted(set(chosen), key=lambda bucket: bucket.first)
        blocks = [
            [i for block in layout.blocks[b.first : b.first + b.count] for i in block] for b in kept
        ]
        buckets = [[SizedBucket(at, 1, bucket.begin) for at, bucket in enumerate(kept)]]
        size = tf.constant(0)
    common = attributes(communicator, "", timeout)
    for at, positions in enumerate(blocks):
        inputs = [values[i] for i in positions]
        reduced = library.graph_ops().tfdist_all_reduce_block(
            inputs=inputs,
            size=size,
            reduce_op=reduce_op,
            block=at,
            bucket_begins=[of_size[at].begin for of_size in buckets],
            first_blocks=[of_size[at].first for of_size in buckets],
            block_counts=[of_size[at].count for of_size in buckets],
            **common | {"label": label_of(inputs)},
        )
        results.update(zip(positions, group_outputs(reduced), strict=True))


def _size_of_this_step(
    layout: Layout,
    first: Sequence[tf.Tensor],
    communicator: Communicator,
    label: str,
    timeout: float | None,
) -> tf.Tensor:
    """Returns the index of the size of this step's buckets, int32[]."""
    if len(layout.names) == 1:
        return tf.constant(0)
    _log_choices()
    options = attributes(communicator, label, timeout)
    if tf.executing_eagerly():
        # All eager collectives have the same key; each list has its own search.
        shape = [(v.dtype.name, v.shape.as_list()) for v in first]
        options["key"] = collective_keys.named_key(f"size of buckets: {layout} {shape}")
    # Behind a gradient: steps in a loop of a graph must not begin before their turn.
    with tf.control_dependencies([] if tf.executing_eagerly() else first[:1]):
        size = library.graph_ops().tfdist_bucket_size(
            sizes=layout.names, initial=layout.initial, **options
        )
    return size


def _tail(listed: Sequence[tuple[int, int]], width: int) -> int:
    """Returns where the last tensors begin, of at most `_TAIL_BYTES` together."""
    tail, elements = len(listed), 0
    while tail > 0 and (elements + listed[tail - 1][1]) * width <= _TAIL_BYTES:
        tail -= 1
        elements += listed[tail][1]
    return tail


def _distinct(
    begins: Sequence[int], sizes: Sequence[tuple[tf.DType, int]]
) -> tuple[list[str], list[list[SizedBucket]]]:
    """Returns the sizes that make different buckets of these blocks, and the buckets."""
    names: list[str] = []
    found: list[list[SizedBucket]] = []
    for name, limit in SIZES.items():
        buckets = _joined(begins, sizes, limit)
        if buckets not in found:
            names.append(name)
            found.append(buckets)
        elif name == _INITIAL:
            names[found.index(buckets)] = name
    return names, found


def _joined(
    begins: Sequence[int], sizes: Sequence[tuple[tf.DType, int]], limit: float
) -> list[SizedBucket]:
    """Joins blocks of one dtype to buckets of at least `limit` bytes; returns one per block."""
    groups: list[list[int]] = []
    filled = math.inf
    for at, (dtype, bytes_) in enumerate(sizes):
        if filled >= limit or sizes[at - 1][0] != dtype:
            groups.append([])
            filled = 0
        groups[-1].append(at)
        filled += bytes_
    return [SizedBucket(g[0], len(g), begins[g[0]]) for g in groups for _ in g]


@functools.cache
def _log_choices() -> None:
    """Starts to log what rank 0 has chosen. The thread sleeps outside of Python meanwhile."""

    def log() -> None:
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        while True:
            _FUNCTIONS.bucket_size_chosen(text, _TEXT_BYTES)
            # A warning, because information is not shown by default, and no other place tells it.
            _log.warning("%s", text.value.decode(errors="replace"))

    threading.Thread(target=log, name="tfdist-bucket-size", daemon=True).start()
