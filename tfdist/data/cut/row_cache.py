"""A cache of mapped elements, for workers that map their own rows.

TensorFlow's `cache` keeps every element in its first pass. A worker keeps all elements before the
maps here, in the order of that pass, each with a number. A mapped element is kept under its number
when the worker first needs it. So the workers map each row once at most, and only rows they use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist._types import Nested

_CACHE = "tfdist_row_cache"
# So many numbers belong to a pass. A pass that does not reach the end is not kept by TensorFlow,
# and another one may have another order.
_NUMBERS = 2**40


class Row(NamedTuple):
    """The keys of a row on its way to the cache, and its mapped element if it is there.

    Attributes:
      rows: of its global batch, int64[].
      number: its key, int64[].
      kept: the components of its mapped element, string[n]; empty texts if it is not there.
    """

    rows: tf.Tensor
    number: tf.Tensor
    kept: tf.Tensor


def can_be_kept(spec: Nested) -> bool:
    """Whether elements can be kept by number: they are tensors of values."""
    leaves = tf.nest.flatten(spec)
    return bool(leaves) and all(
        isinstance(leaf, tf.TensorSpec) and leaf.dtype not in (tf.variant, tf.resource)
        for leaf in leaves
    )


def row_cache_of(node: Any) -> RowCache:
    """Returns the cache that stands for a `cache` of a pipeline; the same object each time.

    Args:
      node: a `CacheDataset` in memory, whose elements can be kept.
    """
    if _CACHE not in vars(node):
        setattr(node, _CACHE, RowCache(node.element_spec))
    return vars(node)[_CACHE]


class RowCache:
    """Mapped elements in memory, by number.

    Args:
      spec: of these elements, for which `can_be_kept` holds.
    """

    def __init__(self, spec: Nested) -> None:
        self._spec = spec
        self._leaves: list[tf.TensorSpec] = tf.nest.flatten(spec)
        self._kept = tf.lookup.experimental.MutableHashTable(
            tf.int64, tf.string, [""] * len(self._leaves)
        )
        with tf.device("CPU"):
            self._passes = tf.Variable(0, trainable=False, dtype=tf.int64)
        self._numbered: tf.data.Dataset | None = None

    def numbered(self, raw: tf.data.Dataset) -> tf.data.Dataset:
        """Returns pairs of an element and its number, int64[], in a memory cache.

        Args:
          raw: the elements before the maps; the same ones in each call.
        """
        if self._numbered is None:
            first = tf.data.Dataset.range(1).map(lambda _: self._begin())
            pairs = first.flat_map(
                lambda number: tf.data.Dataset.zip((raw, tf.data.Dataset.counter(number)))
            )
            count = raw.cardinality()
            if count != tf.data.UNKNOWN_CARDINALITY:
                pairs = pairs.apply(tf.data.experimental.assert_cardinality(count))
            self._numbered = pairs.cache()
        return self._numbered

    def find(self, rows: tf.Tensor, number: tf.Tensor) -> Row:
        """Looks a row up."""
        return Row(rows, number, self._kept.lookup(number))

    def mapped_once(
        self, call: Callable[[Nested], Nested], spec: Nested
    ) -> Callable[[Nested, Row], tuple[Nested, Row]]:
        """Returns a map below the cache, which runs for rows that are not kept.

        Args:
          call: maps an element.
          spec: of its result.
        """
        empty = lambda: tf.nest.map_structure(_empty, spec)  # noqa: E731
        return lambda element, row: (
            _with_shapes(tf.cond(_is_kept(row), empty, lambda: call(element)), spec),
            row,
        )

    def keep(self, element: Nested, row: Row) -> tuple[Nested, tf.Tensor]:
        """Keeps a mapped element unless it is there; returns it, and the rows of its batch."""

        def read() -> list[tf.Tensor]:
            texts = tf.unstack(row.kept, len(self._leaves))
            pairs = zip(texts, self._leaves, strict=True)
            return [tf.io.parse_tensor(text, leaf.dtype) for text, leaf in pairs]

        def write() -> list[tf.Tensor]:
            leaves = tf.nest.flatten(element)
            texts = tf.stack([tf.io.serialize_tensor(leaf) for leaf in leaves])
            with tf.control_dependencies([self._kept.insert(row.number, texts)]):
                return [tf.identity(leaf) for leaf in leaves]

        leaves = tf.cond(_is_kept(row), read, write)
        return _with_shapes(tf.nest.pack_sequence_as(self._spec, leaves), self._spec), row.rows

    def _begin(self) -> tf.Tensor:
        """Begins a pass over the elements; returns its first number."""
        numbers, _ = self._kept.export()
        with tf.control_dependencies([self._kept.remove(numbers)]):
            return self._passes.assign_add(_NUMBERS)


def _is_kept(row: Row) -> tf.Tensor:
    return tf.strings.length(row.kept[0]) > 0


def _empty(spec: tf.TensorSpec) -> tf.Tensor:
    """A tensor that stands for an element which is not computed."""
    shape = [] if spec.shape.rank is None else [length or 0 for length in spec.shape]
    return tf.zeros(shape, spec.dtype)


def _with_shapes(element: Nested, spec: Nested) -> Any:
    return tf.nest.map_structure(
        lambda value, its: tf.ensure_shape(value, its.shape), element, spec
    )
