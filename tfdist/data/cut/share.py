"""Makes a worker's pipeline: its rows of each global batch, mapped by this worker alone.

Rows carry the number of rows of their global batch, of which the bounds of shares follow. A share
of fewer rows than others is filled up, so that each has the same number of rows until they are
batched; then the additional rows are cut off. Thus an empty share has the right shapes, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfdist._types import Nested
from tfdist.data.cut import nodes
from tfdist.data.cut.any_rows import as_traced, for_any_rows
from tfdist.data.cut.nodes import kind
from tfdist.data.cut.plan import CutPlan, Uncut, Unzipped, plan_of
from tfdist.data.cut.row_cache import RowCache, row_cache_of
from tfdist.data.draws import handle_of
from tfdist.data.shares import rows_between, rows_in

_SHARES = "tfdist_shares"
# `take` of so many elements keeps TensorFlow from fusing a shuffle and a repeat that the user has
# separated: the fused ones draw other orders.
_ALL = 2**62


def own_rows(
    dataset: tf.data.Dataset, workers: int, rank: int, devices: int = 1
) -> tf.data.Dataset | None:
    """Returns a worker's share of a dataset of batches, whose maps run for this share alone.

    Args:
      dataset: the same in all workers.
      workers: the number of workers.
      rank: this worker's rank.
      devices: of each worker.

    Returns:
      As `share_of`; `None` if the maps need the whole batches.
    """
    plan = plan_of(dataset)
    if isinstance(plan, Uncut):
        plan.tell(rank)
        return None
    if not tf.executing_eagerly():
        return share_of(plan, workers, rank, devices)
    # Made again for each `evaluate` it would be traced again.
    made = vars(nodes.inner(dataset)).setdefault(_SHARES, {})
    key = workers, rank, devices
    if key not in made:
        cached = None if plan.cached is None else own_rows(plan.cached, workers, rank, devices)
        if cached is None:
            made[key] = share_of(plan, workers, rank, devices)
        else:
            made[key] = cached.skip(nodes.inner(dataset)._count * devices)
    return made[key]


def share_of(plan: CutPlan, workers: int, rank: int, devices: int = 1) -> tf.data.Dataset:
    """Returns a worker's share of a pipeline.

    Args:
      plan: of the pipeline.
      workers: the number of workers.
      rank: this worker's rank.
      devices: of each worker.

    Returns:
      A dataset with `devices` batches for each batch of the pipeline: its shares, as
      `tfdist.data.shares.rows_of` cuts them for `workers * devices` shares.
    """
    share = _Share(plan, workers * devices, rank * devices, devices)
    batches = _own_batches(share)
    if devices > 1:
        batches = batches.flat_map(share.parts)
    elif plan.shares:
        batches = batches.map(lambda batch, _: batch)
    number = tf.get_static_value(plan.whole.cardinality())
    if number is not None and number != tf.data.UNKNOWN_CARDINALITY:
        number = number * devices if number > 0 else number
        batches = batches.apply(tf.data.experimental.assert_cardinality(number))
    return batches.with_options(plan.whole.options())


@dataclasses.dataclass(frozen=True)
class _Share:
    """Some neighbouring shares of a pipeline's batches, for the devices of one worker.

    Args:
      plan: of the pipeline.
      shares: into which a batch is cut.
      first: the first of these shares.
      count: their number.
    """

    plan: CutPlan
    shares: int
    first: int
    count: int

    @property
    def is_constant(self) -> bool:
        """Whether all batches have the same number of rows."""
        return self.plan.has_full_batches

    @property
    def slots(self) -> int:
        """The rows of these shares in a full batch, filled up."""
        if self.is_constant:
            begin, end = self.own(self.plan.size)
            return max(end - begin, 1)
        return self.count * -(-self.plan.size // self.shares)

    def bounds(self, rows: Any, first: int, last: int) -> tuple[Any, Any]:
        """Returns the first row of share `first`, and the row after share `last - 1`.

        Args:
          rows: of the batch; a number, or int64[].
          first: a share.
          last: another one.
        """
        least = tf.minimum if tf.is_tensor(rows) else min
        each = (rows + self.shares - 1) // self.shares
        return least(first * each, rows), least(last * each, rows)

    def own(self, rows: Any) -> tuple[Any, Any]:
        """Returns the bounds of these shares in a batch of some rows."""
        return self.bounds(rows, self.first, self.first + self.count)

    def filled(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns the number of rows that these shares have before they are cut off."""
        slots = tf.constant(self.slots, tf.int64)
        orders = {kind(node) for node in self.plan.batches}
        if self.is_constant or orders & {"_RepeatDataset", "_ShuffleDataset"}:
            return slots
        # A short batch is the last one.
        begin, end = self.own(rows)
        return tf.where(rows < self.plan.size, tf.maximum(end - begin, 1), slots)

    def own_rows(self, batch: Nested) -> tuple[Nested, tf.Tensor]:
        """Returns these shares of a batch, or one row if they are empty, and the batch's rows."""
        rows = rows_in(batch)
        begin, end = self.own(self.plan.size if self.is_constant else rows)
        if self.is_constant and begin < end:
            return rows_between(batch, begin, end), tf.fill([end - begin], rows)
        begin, end = (tf.cast(bound, tf.int64) for bound in (begin, end))
        begin, count = tf.minimum(begin, rows - 1), tf.maximum(end - begin, 1)
        return rows_between(batch, begin, begin + count), tf.fill([count], rows)

    @property
    def is_alone(self) -> bool:
        """Whether no caller needs the number of rows of a batch that is trimmed."""
        return self.count == 1 and not self.plan.shares

    def trimmed(self, batch: Nested, rows: tf.Tensor) -> Any:
        """Cuts off the additional rows of a batch of these shares.

        Returns:
          The batch if it is alone; else also the number of rows of its global batch.
        """
        begin, end = self.own(self.plan.size if self.is_constant else rows[0])
        if not (self.is_constant and end - begin == self.slots):
            batch = rows_between(batch, 0, end - begin)
        return batch if self.is_alone else (batch, rows[0])

    def parts(self, batch: Nested, rows: tf.Tensor) -> tf.data.Dataset:
        """Returns the shares one by one."""
        rows = self.plan.size if self.is_constant else rows
        start, _ = self.own(rows)
        parts = []
        for share in range(self.first, self.first + self.count):
            begin, end = (bound - start for bound in self.bounds(rows, share, share + 1))
            parts.append(tf.data.Dataset.from_tensors((rows_between(batch, begin, end),)))
        first, *others = parts
        for part in others:
            first = first.concatenate(part)
        return first.map(lambda batch: batch)


def _own_batches(share: _Share) -> tf.data.Dataset:
    """Returns this worker's batches, each with the number of rows of its global batch."""
    plan = share.plan
    if plan.elements:
        batches = mapped(plan, _own_rows(share), share.slots, plan.drops_rest)
    else:
        batches = mapped_batches(plan, with_whole(groups_of(plan), share.own_rows))
    batches = batches.map(share.trimmed)
    for node in plan.batches:
        if kind(node) == "_PrefetchDataset":
            batches = batches.prefetch(_constant(node._buffer_size))
    for node in plan.shares:
        if kind(node) in nodes.MAPS:
            batches = _mapped(batches, node)
        elif kind(node) == "_PrefetchDataset":
            batches = batches.prefetch(_constant(node._buffer_size))
        elif kind(node) == "CacheDataset":
            batches = batches.cache()
        else:
            batches = reordered(batches, node)
    return batches


def mapped(plan: CutPlan, rows: tf.data.Dataset, size: Any, drops_rest: bool) -> tf.data.Dataset:
    """Returns batches of rows to which the maps of a pipeline were applied.

    Args:
      plan: of the pipeline.
      rows: pairs of an element before the maps, and the number of rows of its global batch.
      size: the rows of a batch; a number, or int64[].
      drops_rest: whether a last batch of fewer rows is left out.

    Returns:
      Pairs of a batch, and of these numbers.
    """
    caches = [row_cache_of(node) for node in plan.elements if kind(node) == "CacheDataset"]
    cache = caches[0] if caches else None
    if cache is not None:
        find = cache.find
        rows = rows.map(lambda row, rows: (row[0], find(rows, row[1])))
    for node in plan.elements:
        if isinstance(node, Unzipped):
            calls = [each for maps in node.maps for each in maps]
            rows = _mapped_rows(rows, _unzipped(node), calls, cache)
        elif kind(node) in nodes.MAPS:
            rows = _mapped_rows(rows, as_traced(node), [node], cache)
        elif kind(node) == "_PrefetchDataset":
            rows = rows.prefetch(_constant(node._buffer_size))
        elif cache is not None and kind(node) == "CacheDataset":
            rows = rows.map(cache.keep)
            cache = None
    return mapped_batches(plan, _batched(plan.batch, rows, size, drops_rest))


def _mapped_rows(
    rows: tf.data.Dataset, call: Callable[[Nested], Nested], maps: list[Any], cache: RowCache | None
) -> tf.data.Dataset:
    """Maps the first of pairs; if a cache above will keep the result, only if it does not yet."""
    if cache is None:
        return rows.map(_of_first(call), **_parallel(maps))
    spec, _ = rows.map(_of_first(call)).element_spec
    return rows.map(cache.mapped_once(call, spec), **_parallel(maps))


def mapped_batches(plan: CutPlan, batches: tf.data.Dataset) -> tf.data.Dataset:
    """Applies the maps of a pipeline's batches to some of their rows.

    Each is a map of its own: in one graph TensorFlow would multiply their constants with each other
    first, and round otherwise.

    Args:
      plan: of the pipeline.
      batches: pairs of a batch, and of the numbers of rows of the global batches.

    Returns:
      As `batches`.
    """
    for node in plan.batches:
        if kind(node) in nodes.MAPS:
            batches = _mapped(batches, node)
    return batches


def has_dense_elements(plan: CutPlan) -> bool:
    """Whether what is cut are tensors, which have shapes of their own if they are batched later."""
    if not plan.elements:
        specs = tf.nest.flatten(plan.batch.element_spec)
        return all(isinstance(spec, tf.TensorSpec) for spec in specs)
    return all(
        isinstance(leaf, tf.TensorSpec) and leaf.shape.is_fully_defined()
        for leaf in tf.nest.flatten(plan.base.element_spec)
    )


def groups_of(plan: CutPlan) -> tf.data.Dataset:
    """Returns the global batches before the maps: tensors, or windows of other elements."""
    if not plan.elements:
        groups = plan.batch
        for node in plan.batches:
            groups = reordered(groups, node)
        return groups
    raw = plan.base
    for node in plan.elements:
        if kind(node) == "CacheDataset":
            raw = row_cache_of(node).numbered(raw)
        elif not isinstance(node, Unzipped):
            raw = reordered(raw, node)
    if has_dense_elements(plan):
        groups = raw.batch(plan.size, plan.drops_rest)
    else:
        groups = raw.window(plan.size, drop_remainder=plan.drops_rest)
    for node in plan.batches:
        groups = reordered(groups, node)
    return groups


def with_whole(groups: tf.data.Dataset, call: Callable[[Nested], Any]) -> tf.data.Dataset:
    """Maps elements by a function of one argument; `map` unpacks a tuple."""
    if type(groups.element_spec) is tuple:
        return groups.map(lambda *group: call(group))
    return groups.map(call)


def _own_rows(share: _Share) -> tf.data.Dataset:
    """Returns this worker's rows before the maps, each with the rows of its global batch."""
    groups = groups_of(share.plan)
    is_dense = has_dense_elements(share.plan)
    begin, end = share.own(share.plan.size)
    if is_dense and share.is_constant and begin < end:
        return _rows_without_functions(share, groups)
    cut = _rows_of_batch if is_dense else _rows_of_window
    # `flat_map` unpacks a tuple.
    if type(groups.element_spec) is tuple:
        return groups.flat_map(lambda *group: cut(share, group))
    return groups.flat_map(lambda group: cut(share, group))


def _rows_without_functions(share: _Share, groups: tf.data.Dataset) -> tf.data.Dataset:
    """Each function of a dataset costs some milliseconds when the dataset is opened."""
    size = share.plan.size
    begin, end = share.own(size)
    parts = [part for part in (begin, end - begin, size - end) if part]
    own = groups.rebatch(parts).shard(len(parts), int(begin > 0)).unbatch()
    sizes = tf.data.Dataset.from_tensors(tf.constant(size, tf.int64)).repeat()
    return tf.data.Dataset.zip((own, sizes))


def _rows_of_batch(share: _Share, batch: Nested) -> tf.data.Dataset:
    rows = rows_in(batch)
    begin, _ = share.own(rows)
    filled = share.filled(rows)
    at = tf.minimum(begin + tf.range(filled), rows - 1)
    own = tf.nest.map_structure(lambda value: tf.gather(value, at), batch)
    return tf.data.Dataset.from_tensor_slices((own, tf.fill([filled], rows)))


def _rows_of_window(share: _Share, window: Nested) -> tf.data.Dataset:
    rows = tf.nest.flatten(window)[0].cardinality()
    begin, end = share.own(rows)
    begin = tf.minimum(begin, rows - 1)  # of an empty share, which takes one row
    count, filled = tf.maximum(end - begin, 1), share.filled(rows)
    elements = window if isinstance(window, tf.data.Dataset) else tf.data.Dataset.zip(window)
    own = elements.skip(begin).take(count)
    if not share.is_constant:
        own = own.concatenate(elements.take(1).repeat(filled - count))
    return tf.data.Dataset.zip((own, tf.data.Dataset.from_tensors(rows).repeat()))


def _batched(batch: Any, rows: tf.data.Dataset, size: Any, drops_rest: bool) -> tf.data.Dataset:
    if kind(batch) == "_PaddedBatchDataset":
        values = (batch._padding_values, tf.constant(0, tf.int64))
        return rows.padded_batch(size, (batch._padded_shapes, ()), values, drops_rest)
    calls = getattr(batch, "_num_parallel_calls", None)
    if calls is None:
        return rows.batch(size, drops_rest)
    return rows.batch(size, drops_rest, num_parallel_calls=calls, deterministic=True)


def reordered(dataset: tf.data.Dataset, node: Any) -> tf.data.Dataset:
    """Applies a node that orders elements to other elements; any other node changes nothing."""
    if kind(node) == "_ShuffleDataset":
        return _shuffled(dataset, node)
    if kind(node) == "_RepeatDataset":
        is_fused = kind(nodes.below(node)) == "_ShuffleDataset"
        if not is_fused and kind(dataset) in ("_ShuffleDataset", "_VariantDataset"):
            dataset = dataset.take(_ALL)
        return dataset.repeat(node._count)
    if kind(node) == "_TakeDataset":
        return dataset.take(node._count)
    if kind(node) == "_SkipDataset":
        return dataset.skip(node._count)
    if kind(node) == "_AssertCardinalityDataset":
        return dataset.apply(tf.data.experimental.assert_cardinality(node.cardinality()))
    return dataset


def _shuffled(dataset: tf.data.Dataset, node: Any) -> tf.data.Dataset:
    """Shuffles with the seed generator of another shuffle: both draw its orders in turn."""
    arguments = {
        "input_dataset": dataset._variant_tensor,
        "buffer_size": node._buffer_size,
        "seed": node._seed,
        "seed2": node._seed2,
        "reshuffle_each_iteration": node._reshuffle_each_iteration,
        **dataset._flat_structure,
    }
    if node._reshuffle_each_iteration:
        variant = tf.raw_ops.ShuffleDatasetV3(seed_generator=handle_of(node), **arguments)
    else:
        variant = tf.raw_ops.ShuffleDataset(**arguments)
    return tf.data.experimental.from_variant(variant, dataset.element_spec)


def _mapped(batches: tf.data.Dataset, node: Any) -> tf.data.Dataset:
    """Applies a map over batches to batches of other numbers of rows."""
    return batches.map(_of_first(for_any_rows(node)), **_parallel([node]))


def _unzipped(node: Unzipped) -> Callable[[Nested], Nested]:
    """Returns a function that maps the components of an element."""

    def mapped(sources: Any, element: Nested, maps: Iterator[tuple[Any, ...]]) -> Any:
        if isinstance(sources, Mapping):
            made = {key: mapped(sources[key], element[key], maps) for key in sorted(sources)}
            return type(element)(made)
        if isinstance(sources, tuple):
            parts = [mapped(*pair, maps) for pair in zip(sources, element, strict=True)]
            return type(element)(*parts) if hasattr(element, "_fields") else tuple(parts)
        for each in next(maps):
            element = as_traced(each)(element)
        return element

    return lambda element: mapped(node.sources, element, iter(node.maps))


def _of_first(
    call: Callable[[Nested], Nested],
) -> Callable[[Nested, tf.Tensor], tuple[Nested, tf.Tensor]]:
    """Returns a function of an element and its number of rows."""
    return lambda element, rows: (call(element), rows)


def _parallel(maps: list[Any]) -> dict[str, Any]:
    """The arguments of `map` for the calls of some maps at once."""
    calls = [each._num_parallel_calls for each in maps if kind(each) == "_ParallelMapDataset"]
    if not calls:
        return {}
    numbers = [_constant(each) for each in calls]
    number = tf.data.AUTOTUNE if tf.data.AUTOTUNE in numbers else max(numbers)
    return {"num_parallel_calls": number, "deterministic": True}


def _constant(number: tf.Tensor) -> int:
    return int(tf.get_static_value(number))
