"""Rows that are mapped ahead of a step that cuts its batch when it is made: elastic jobs.

Members come and go, so that the rows of a worker are known when a step is made. Its pipeline maps
the rows of the cut that holds while it runs, and hands them out with the global batch before the
maps. A step that needs other rows has them mapped again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist._types import Nested
from tfdist.data.background_release import release_in_background
from tfdist.data.cut import nodes
from tfdist.data.cut.nodes import kind
from tfdist.data.cut.plan import CutPlan, Uncut, plan_of
from tfdist.data.cut.share import (
    groups_of,
    has_dense_elements,
    mapped,
    mapped_batches,
    reordered,
    with_whole,
)
from tfdist.data.shares import number_of_rows, rows_between, rows_in
from tfdist.internals.tensorflow import prefetch_op

_PLAN, _MAPS, _AHEAD = "tfdist_plan_ahead", "tfdist_maps", "tfdist_ahead"
# The rank of a worker and the number of workers, int32[] each, at each execution. Equal if they
# are of the same workers.
World = Callable[[], tuple[tf.Tensor, tf.Tensor]]


class GlobalBatch:
    """A batch of all workers, in memory.

    Args:
      whole: tensors of shape [rows, ...], also sparse and ragged ones, in any structure.

    Attributes:
      rows: the number of its rows; `None` if it has no tensors.
      sample: rows in memory, any number of them.
    """

    def __init__(self, whole: Nested) -> None:
        self.sample = whole
        self.rows = number_of_rows(whole)

    def between(self, first: int, last: int) -> Nested:
        """Returns the rows from `first` to `last - 1`."""
        return (
            self.sample if (first, last) == (0, self.rows) else _between(self.sample, first, last)
        )

    def share(self, shares: int, first: int, count: int) -> tuple[Nested, int]:
        """Returns neighbouring shares of the rows, and the number of rows of a full share.

        Args:
          shares: into which the batch is cut, as by `tfdist.data.shares.rows_of`.
          first: the first of them.
          count: their number.
        """
        if self.rows is None:
            return self.sample, 0
        each = -(-self.rows // shares)
        begin, end = (min(share * each, self.rows) for share in (first, first + count))
        return self.between(begin, end), each


class MappedAhead(GlobalBatch):
    """A batch of which some rows are mapped.

    Args:
      raw: all rows before the maps.
      rows: their number.
      begin: the first mapped row.
      own: the mapped rows.
      maps: maps others.
    """

    def __init__(self, raw: Nested, rows: int, begin: int, own: Nested, maps: _Maps) -> None:
        self.sample = own
        self.rows = rows
        self._raw = raw
        self._begin = begin
        self._end = begin + (number_of_rows(own) or 0)
        self._maps = maps

    def between(self, first: int, last: int) -> Nested:
        """See `GlobalBatch`."""
        if (first, last) == (self._begin, self._end):
            return self.sample
        if self._begin <= first <= last <= self._end:
            return _between(self.sample, first - self._begin, last - self._begin)
        return self._maps(self._raw, tf.constant(first, tf.int64), tf.constant(last, tf.int64))


class GlobalBatches(prefetch_op._PrefetchDataset):
    """A dataset of batches whose iterators return each as a `GlobalBatch`, one ahead.

    Args:
      dataset: the same on all workers.
      world: of the workers.
      devices: of each worker.
    """

    def __init__(self, dataset: tf.data.Dataset, world: World, devices: int) -> None:
        super().__init__(dataset, 1)
        self._world = world
        self._devices = devices

    def skip(self, count: int, name: str | None = None) -> GlobalBatches:
        """Returns the dataset without its first batches."""
        return GlobalBatches(self._input_dataset.skip(count, name), self._world, self._devices)

    def __iter__(self) -> Iterator[GlobalBatch]:
        plan = _plan_ahead(self._input_dataset)
        if isinstance(plan, Uncut):
            plan.tell(int(self._world()[0]))
            iterator = super().__iter__()
            release_in_background(iterator)
            return map(GlobalBatch, iterator)
        maps = _maps_of(plan)
        iterator = iter(_ahead_of(plan, self._world, self._devices))
        release_in_background(iterator)
        return (
            MappedAhead(raw, int(rows), int(begin), own, maps) for raw, rows, begin, own in iterator
        )


# Walks through pipelines know nodes by the names of their classes.
GlobalBatches.__name__ = prefetch_op._PrefetchDataset.__name__


def _ahead_of(plan: CutPlan, world: World, devices: int) -> tf.data.Dataset:
    """Returns batches before the maps, their rows, the first mapped row, and the mapped rows.

    The same object each time, since a cache belongs to it.
    """
    node = nodes.inner(plan.whole)
    made = vars(node).setdefault(_AHEAD, {})
    if (world, devices) not in made:
        cached = None if plan.cached is None else _plan_ahead(plan.cached)
        if isinstance(cached, CutPlan):
            made[world, devices] = _ahead_of(cached, world, devices).skip(node._count)
        else:
            made[world, devices] = _mapped_ahead(plan, world, devices)
    return made[world, devices]


def _mapped_ahead(plan: CutPlan, world: World, devices: int) -> tf.data.Dataset:
    maps = _maps_of(plan)

    def ahead(raw: Nested) -> tuple[Nested, tf.Tensor, tf.Tensor, Nested]:
        rows = rows_in(raw)
        rank, size = (tf.cast(number, tf.int64) for number in world())
        each = (rows + size * devices - 1) // (size * devices)
        begin, end = (tf.minimum(r * devices * each, rows) for r in (rank, rank + 1))
        return raw, rows, begin, maps(raw, begin, end)

    batches = with_whole(groups_of(plan), ahead)
    for node in plan.shares:
        if kind(node) == "CacheDataset":
            batches = batches.cache()
        elif kind(node) != "_PrefetchDataset":
            batches = reordered(batches, node)
    return batches.prefetch(_prefetched(plan)).with_options(plan.whole.options())


class _Maps:
    """Applies the maps of a pipeline to some rows of a batch before the maps."""

    def __init__(self, plan: CutPlan) -> None:
        above = [node for node in plan.elements if kind(node) != "_PrefetchDataset"]
        self._plan = dataclasses.replace(plan, elements=tuple(above))
        number = tf.TensorSpec([], tf.int64)
        signature = [groups_of(plan).element_spec, number, number]
        self._function = tf.function(self._mapped, input_signature=signature, autograph=False)

    def __call__(self, raw: Nested, begin: tf.Tensor, end: tf.Tensor) -> Nested:
        """Returns the mapped rows from `begin` to `end - 1`, int64[] each."""
        return self._function(raw, begin, end)

    def _mapped(self, raw: Nested, begin: tf.Tensor, end: tf.Tensor) -> Nested:
        rows = rows_in(raw)
        # No rows also have the right shapes if one row is mapped and cut off.
        first, count = tf.minimum(begin, rows - 1), tf.maximum(end - begin, 1)
        some = rows_between(raw, first, first + count)
        pair = some, tf.fill([count], rows)
        if self._plan.elements:
            pairs = tf.data.Dataset.from_tensor_slices(pair)
            batches = mapped(self._plan, pairs, count, False)
        else:
            batches = mapped_batches(self._plan, tf.data.Dataset.from_tensors(pair))
        batch, _ = batches.get_single_element()
        return rows_between(batch, 0, end - begin)


def _maps_of(plan: CutPlan) -> _Maps:
    """Returns the maps of a pipeline; the same object each time, since they are traced."""
    node = vars(nodes.inner(plan.whole))
    if _MAPS not in node:
        node[_MAPS] = _Maps(plan)
    return node[_MAPS]


def _plan_ahead(dataset: tf.data.Dataset) -> CutPlan | Uncut:
    """Returns how rows of a pipeline are mapped ahead; the same object each time."""
    node = nodes.inner(dataset)
    found = vars(node).get(_PLAN)
    if found is None:
        found = plan_of(dataset)
        if isinstance(found, CutPlan):
            if not has_dense_elements(found):
                found = Uncut(
                    "elements before the maps have no fixed shape, which an elastic job needs"
                )
            elif any(kind(node) in nodes.MAPS for node in found.shares):
                found = Uncut("a map follows a cache or a shuffle of batches: map before it")
        setattr(node, _PLAN, found)
    return found


def _prefetched(plan: CutPlan) -> int:
    """How many batches are mapped ahead: as the pipeline says, or one."""
    sizes = [
        int(tf.get_static_value(node._buffer_size))
        for node in (*plan.batches, *plan.shares)
        if kind(node) == "_PrefetchDataset"
    ]
    return max([1, *sizes]) if tf.data.AUTOTUNE not in sizes else tf.data.AUTOTUNE


def _between(batch: Nested, first: int, last: int) -> Nested:
    composites = tf.RaggedTensor | tf.SparseTensor
    if any(isinstance(leaf, composites) for leaf in tf.nest.flatten(batch)):
        # They are cut by many ops.
        return _compiled(batch, tf.constant(first, tf.int64), tf.constant(last, tf.int64))
    return rows_between(batch, first, last)


_compiled: Any = tf.function(rows_between, autograph=False, reduce_retracing=True)
