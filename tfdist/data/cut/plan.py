"""Reads a pipeline from its end, and finds where a worker's rows can be cut.

    base        source, shuffle, filter, ...   all below the lowest map that can move; not rebuilt
    elements    map, shuffle, repeat, ...      from there up to the batch
    batch
    batches     take, skip, prefetch, per-row maps, ...
    shares      cache or shuffle of batches, and all above it

Nodes that order elements or batches are rebuilt on elements that are not mapped yet. The other ones
are applied to this worker's rows. If no element is mapped, the batch is a part of the base.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from typing import Any

import tensorflow as tf

from tfdist.data.cut import nodes
from tfdist.data.cut.any_rows import why_not_for_any_rows
from tfdist.data.cut.by_row import first_op_over_rows
from tfdist.data.cut.nodes import kind
from tfdist.data.cut.row_cache import can_be_kept
from tfdist.data.draws import handle_of
from tfdist.data.pipeline import BATCHES, feed_of

_log = logging.getLogger("tfdist")

_PLAN, _PER_ROW = "tfdist_cut", "tfdist_per_row"
_SPECS = (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec)


@dataclasses.dataclass
class Uncut:
    """A pipeline that is cut at its end.

    Attributes:
      reason: the part that prevents another cut, and the remedy; "" if the user maps nothing.
      is_told: whether the reason is in the log.
    """

    reason: str = ""
    is_told: bool = False

    def tell(self, rank: int) -> None:
        """Warns of the reason once, on rank 0."""
        if self.reason and rank == 0 and not self.is_told:
            self.is_told = True
            _log.warning(
                "input: each worker maps whole global batches, and uses its rows of them: %s",
                self.reason,
            )


@dataclasses.dataclass(frozen=True)
class Unzipped:
    """`zip(a.map(f), b)`, as maps of the components of `zip(a, b)`.

    Attributes:
      maps: of each component, from the lowest one upwards.
      sources: the structure of the datasets below the maps.
    """

    maps: tuple[tuple[Any, ...], ...]
    sources: Any


@dataclasses.dataclass(frozen=True)
class CutPlan:
    """How a pipeline of batches is cut before its maps; the module's drawing has the parts.

    Attributes:
      whole: the pipeline.
      base: the part that stays as it is.
      elements: the nodes from there to the batch, the lowest first; an `Unzipped` for a zip. A
        cache among them keeps the elements that this worker maps. None if only batches are mapped.
      batch: the node that makes the batches.
      size: the rows of a batch.
      drops_rest: whether a last batch of fewer rows is left out.
      batches: the nodes above it.
      shares: the nodes that take this worker's batches as they are.
    """

    whole: tf.data.Dataset
    base: tf.data.Dataset
    elements: tuple[Any, ...]
    batch: Any
    size: int
    drops_rest: bool
    batches: tuple[Any, ...]
    shares: tuple[Any, ...]

    @functools.cached_property
    def has_full_batches(self) -> bool:
        """Whether all batches are known to have `size` rows."""
        rows = tf.get_static_value(nodes.below(self.batch).cardinality())
        if self.drops_rest or rows == tf.data.INFINITE_CARDINALITY:
            return True
        return rows is not None and rows >= 0 and rows % self.size == 0

    @property
    def cached(self) -> tf.data.Dataset | None:
        """The pipeline below a last `skip`, which has the same cache; `None` without them."""
        node = nodes.inner(self.whole)
        has_cache = any(kind(each) == "CacheDataset" for each in self.shares)
        return nodes.below(node) if has_cache and kind(node) == "_SkipDataset" else None


class _Refusal(Exception):
    """The pipeline cannot be cut before its maps."""


def has_full_batches(dataset: tf.data.Dataset) -> bool:
    """Whether a dataset is cut before its maps, and each of its batches has as many rows."""
    plan = plan_of(dataset)
    return isinstance(plan, CutPlan) and plan.has_full_batches


def plan_of(dataset: tf.data.Dataset) -> CutPlan | Uncut:
    """Returns how a pipeline of batches is cut; the same object each time.

    Args:
      dataset: the pipeline, before workers share it.
    """
    node = nodes.inner(dataset)
    found = vars(node).get(_PLAN)
    if found is None:
        try:
            found = _plan(dataset)
        except _Refusal as refusal:
            found = Uncut(str(refusal) if nodes.has_map(dataset) else "")
        setattr(node, _PLAN, found)
    return found


def per_row(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Declares that the map at the end of a pipeline treats each row of a batch by itself.

    A map over batches may need all rows, as to normalize by their mean. Without this declaration
    each worker maps whole global batches, and keeps its rows, unless the ops of the map are known
    to treat each row by itself. With it, a worker maps its rows only.

    Args:
      dataset: the result of `Dataset.map` on batches.

    Returns:
      The dataset itself.

    Raises:
      ValueError: the dataset is not the result of `map`.

    Example:
      >>> texts = tf.data.Dataset.from_tensor_slices(["a b", "c"]).batch(2)
      >>> texts = tfdist.data.per_row(texts.map(tf.strings.upper))
    """
    node = nodes.inner(dataset)
    if kind(node) not in nodes.MAPS:
        raise ValueError(
            "tfdist.data.per_row: expected the result of Dataset.map, received the result of "
            f"{_name(node)}"
        )
    setattr(node, _PER_ROW, True)
    return dataset


def _plan(dataset: tf.data.Dataset) -> CutPlan:
    if feed_of(dataset) is not None:
        raise _Refusal("data tasks give each worker its own records")
    above, batch = _above_batch(nodes.inner(dataset))
    size, drops_rest = map(tf.get_static_value, (batch._batch_size, batch._drop_remainder))
    if size is None or drops_rest is None:
        raise _Refusal("the batch size is a tensor: use a number")
    shares, batches = _split_at_cache(above)
    elements, base, lowest = _below_batch(batch)
    if elements:
        _check_padding(batch)
    if not any(map(_is_map, (*elements, *batches))):
        if nodes.has_map(lowest):
            raise _Refusal(f"{_name(lowest)} comes after map, and takes the result of it")
        raise _Refusal("")
    if not all(isinstance(spec, _SPECS) for spec in tf.nest.flatten(base.element_spec)):
        raise _Refusal("the elements are no tensors")
    return CutPlan(dataset, base, elements, batch, int(size), bool(drops_rest), batches, shares)


def _above_batch(node: Any) -> tuple[list[Any], Any]:
    """Returns the nodes above the batch, the highest first, and the batch."""
    above = []
    while kind(node) not in BATCHES:
        if kind(node) in nodes.MAPS:
            _check_map_of_batches(node)
        elif kind(node) == "CacheDataset":
            if tf.get_static_value(node._filename):
                raise _Refusal("a cache of batches is in a file, which all workers would write")
        elif kind(node) not in nodes.PASSES | nodes.ORDERS:
            raise _Refusal(f"{_name(node)} comes after batch")
        _check_shuffle(node)
        above.append(node)
        node = nodes.below(node)
    return above, node


def _split_at_cache(above: list[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Returns the nodes from the lowest cache or shuffle of batches on, and those below it."""
    stays = [kind(node) in ("CacheDataset", "_ShuffleDataset") for node in above]
    count = len(stays) - stays[::-1].index(True) if any(stays) else 0
    return tuple(above[:count][::-1]), tuple(above[count:][::-1])


def _below_batch(batch: Any) -> tuple[tuple[Any, ...], tf.data.Dataset, Any]:
    """Returns the nodes from the lowest map that can move up to the batch, and its input.

    Returns:
      The nodes; the input; and the first node below the batch that is not followed.
    """
    chain, node = _followed(nodes.below(batch))
    below = _below_cache(node) if kind(node) == "CacheDataset" else None
    if below is not None:
        chain += [node, *below[0]]
        node = below[1]
    lowest = node
    while chain and not _is_map(chain[-1]):
        node = chain.pop()
    for above in chain:
        _check_shuffle(above)
    return tuple(chain[::-1]), node, lowest


def _followed(node: Any) -> tuple[list[Any], Any]:
    """Returns the nodes from `node` downwards that can move, and the first other one."""
    chain: list[Any] = []
    while kind(node) in nodes.MAPS | nodes.PASSES | nodes.ORDERS:
        if kind(node) in nodes.MAPS:
            _check_map(node)
        chain.append(node)
        node = nodes.below(node)
    unzipped = _unzipped(node) if kind(node) == "_ZipDataset" else None
    if unzipped is not None:
        chain.append(unzipped)
        node = tf.data.Dataset.zip(unzipped.sources)
    return chain, node


def _below_cache(cache: Any) -> tuple[list[Any], Any] | None:
    """Returns the nodes below a cache of elements as `_followed`, or `None` if it stays whole."""
    # A graph of TensorFlow 1 would have to initialize the cache.
    if not tf.executing_eagerly() or tf.get_static_value(cache._filename):
        return None
    try:
        chain, node = _followed(nodes.below(cache))
    except _Refusal:
        return None
    maps = [each for each in chain if kind(each) in nodes.MAPS]
    if not any(map(_is_map, chain)) or not all(
        can_be_kept(each.element_spec) for each in (cache, *maps)
    ):
        return None
    return chain, node


def _unzipped(node: Any) -> Unzipped | None:
    """Returns the maps at the ends of the components of a zip, if there are any."""
    sources, maps = [], []
    for part in tf.nest.flatten(node._datasets):
        own = []
        part = nodes.inner(part)
        while kind(part) in nodes.MAPS | nodes.PASSES:
            if kind(part) in nodes.MAPS:
                _check_map(part)
                own.append(part)
            part = nodes.below(part)
        sources.append(part)
        maps.append(tuple(own[::-1]))
    if not any(maps):
        return None
    return Unzipped(tuple(maps), tf.nest.pack_sequence_as(node._datasets, sources))


def _is_map(node: Any) -> bool:
    return isinstance(node, Unzipped) or kind(node) in nodes.MAPS


def _check_map(node: Any) -> None:
    reason = nodes.why_not_for_some(node)
    if reason is not None:
        raise _Refusal(reason)


def _check_map_of_batches(node: Any) -> None:
    if getattr(node, _PER_ROW, False) or nodes.weighs_classes(node):
        reason = why_not_for_any_rows(node)
        if reason is not None:
            raise _Refusal(f"a map over batches of a fixed number of rows: {reason}")
        return
    op = first_op_over_rows(node)
    if op is not None and nodes.depends_on_calls(op):
        raise _Refusal(
            f"a map over batches runs {op}, so that the result depends on the calls before: use "
            "tf.random.stateless_* with a number of the row, before batch, or declare it with "
            "tfdist.data.per_row if each worker may draw numbers of its own"
        )
    if op is not None:
        raise _Refusal(
            f"a map over batches runs {op}, which may need all rows: map before batch, or declare "
            "it with tfdist.data.per_row"
        )


def _check_shuffle(node: Any) -> None:
    """Refuses a shuffle whose seed generator another node cannot share."""
    if (
        kind(node) == "_ShuffleDataset"
        and node._reshuffle_each_iteration
        and handle_of(node) is None
    ):
        raise _Refusal("shuffle comes after map, and its arrays are too large: shuffle before map")


def _check_padding(batch: Any) -> None:
    if kind(batch) != "_PaddedBatchDataset":
        return
    for shape in map(tf.get_static_value, tf.nest.flatten(batch._padded_shapes)):
        if shape is None or (shape < 0).any():
            raise _Refusal(
                "padded_batch pads to the longest row of a batch, which only the map tells: give "
                "padded_shapes without None"
            )


def _name(node: Any) -> str:
    """The name of a node in messages."""
    return kind(node).strip("_").removesuffix("Dataset") or kind(node)
