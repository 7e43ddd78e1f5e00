"""Which records a batch has, at the end of a pipeline that begins with data tasks."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from tfdist._types import Nested
from tfdist.data.feed import Feed
from tfdist.data.stream import Batching, Stream

# Iterations of a dataset whose batches are counted: the last ones.
_KEPT = 4
_NO_PASS = np.int64(-1)
_FEED, _TRACKED = "tfdist_feed", "tfdist_tracked"
# Datasets that keep the order of the records and drop none except the last, by class name.
KEEPS_ORDER = {
    "_MapDataset",
    "_ParallelMapDataset",
    "_PrefetchDataset",
    "_OptionsDataset",
    "_RepeatDataset",
    "_TakeDataset",
    "_AssertCardinalityDataset",
    "_AssertNextDataset",
    "DatasetV1Adapter",
}
# Of these, what reads all records, and once.
_READS_ONCE = KEEPS_ORDER - {"_RepeatDataset", "_TakeDataset"}
BATCHES = {"_BatchDataset", "_ParallelBatchDataset", "_PaddedBatchDataset"}


def mark(dataset: tf.data.Dataset, feed: Feed) -> tf.data.Dataset:
    """Notes that a dataset has the records of a feed."""
    setattr(dataset, _FEED, feed)
    return dataset


def feed_of(dataset: object) -> Feed | None:
    """Returns the feed that a dataset was made of, if any."""
    if not isinstance(dataset, tf.data.Dataset):
        return None
    feed = getattr(dataset, _FEED, None)
    if feed is not None:
        return feed
    return next(filter(None, map(feed_of, dataset._inputs())), None)


def is_tracked(dataset: tf.data.Dataset) -> bool:
    """Whether the records of its batches are counted already."""
    return hasattr(dataset, _TRACKED) or any(map(is_tracked, dataset._inputs()))


def tracked(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset, which tells its feed how many records each batch has.

    Other datasets, and datasets that do so already, are returned as they are.

    Args:
      dataset: of batches.

    Raises:
      ValueError: after `tfdist.data` it does something that changes the order or the number of the
        records, so that the records a step has trained are unknown.
    """
    feed = feed_of(dataset)
    if feed is None or is_tracked(dataset):
        return dataset
    is_batched = _check(dataset, feed) > 0
    batching = _batching(dataset)

    streams: dict[int, Stream] = {}
    numbers = itertools.count()
    takes_some = _takes_some(dataset)

    def passes() -> Iterator[np.int64]:
        """Yields the numbers of the passes through the data, and `_NO_PASS` while it waits."""
        again: int | None = None
        while True:
            number = next(numbers)
            streams.pop(number - _KEPT, None)
            stream = streams[number] = feed.begin_iteration(batching, again)
            yield np.int64(number)
            if takes_some:
                return
            for has_more in feed.wait_for_end(stream):
                if has_more:
                    break
                yield _NO_PASS
            else:
                return
            again = stream.ended

    def count(number: np.ndarray, records: np.ndarray) -> np.ndarray:
        if int(number) in streams:
            streams[int(number)].batch(int(records))
        return records

    def note(number: tf.Tensor, *elements: Nested) -> Nested:
        batch = elements if is_tuple else elements[0]
        records = _records(batch) if is_batched else tf.constant(1, tf.int64)
        noted = tf.numpy_function(count, [number, records], tf.int64)
        with tf.control_dependencies([noted]):
            return tf.nest.map_structure(tf.identity, batch, expand_composites=True)

    def batches(number: tf.Tensor) -> tf.data.Dataset:
        counted = dataset if batching is not None else dataset.map(functools.partial(note, number))
        return counted.take(tf.where(number == _NO_PASS, tf.constant(0, tf.int64), -1))

    options = tf.data.Options()
    options.deterministic = True
    is_tuple = type(dataset.element_spec) is tuple
    result = (
        tf.data.Dataset.from_generator(passes, output_signature=tf.TensorSpec([], tf.int64))
        .flat_map(batches)
        .prefetch(1)  # counting is no part of the training's time
        .with_options(options)
        .with_options(dataset.options())
    )
    setattr(result, _TRACKED, True)
    if not tf.executing_eagerly():
        tf.compat.v1.add_to_collection(_FEED, feed)
    return mark(result, feed)


def feeds_of_graph() -> list[Feed]:
    """Returns the feeds that the default graph of TensorFlow 1 reads."""
    return tf.compat.v1.get_collection(_FEED)


def _check(dataset: tf.data.Dataset, feed: Feed) -> int:
    """Raises unless the order is kept; returns the number of times that records are batched."""
    batches = 0
    if dataset.options().deterministic is False:
        raise ValueError(_refusal(feed, "options.deterministic=False"))
    while getattr(dataset, _FEED, None) is None:
        kind = type(dataset).__name__
        if getattr(dataset, "_deterministic", None) in (False, "false"):
            raise ValueError(_refusal(feed, f"{kind} with deterministic=False"))
        inputs = [one for one in dataset._inputs() if feed_of(one) is not None]
        if kind in BATCHES:
            batches += 1
        elif kind not in KEEPS_ORDER or len(inputs) != 1:
            raise ValueError(_refusal(feed, kind))
        (dataset,) = inputs
    if batches > 1:
        raise ValueError(_refusal(feed, "two batches, one of the other"))
    return batches


def _takes_some(dataset: tf.data.Dataset) -> bool:
    """Whether a dataset has a bound on its records: then no further pass may add to them."""
    if getattr(dataset, _FEED, None) is not None:
        return False
    return type(dataset).__name__ == "_TakeDataset" or any(map(_takes_some, dataset._inputs()))


def _batching(dataset: tf.data.Dataset) -> Batching | None:
    """Returns how a dataset forms batches of the records that it reads once, if it does just that.

    Otherwise each batch must tell its size, from Python: that takes time.
    """
    found = Batching(1)
    while getattr(dataset, _FEED, None) is None:
        kind = type(dataset).__name__
        if kind in BATCHES:
            size, drops = map(tf.get_static_value, (dataset._batch_size, dataset._drop_remainder))
            if size is None or drops is None:
                return None
            found = Batching(int(size), bool(drops))
        elif kind not in _READS_ONCE:
            return None
        (dataset,) = (one for one in dataset._inputs() if feed_of(one) is not None)
    return found


def _refusal(feed: Feed, what: str) -> str:
    return (
        f"tfdist.data: queue {feed.name!r}: expected map, batch, padded_batch, take, repeat and "
        f"prefetch after it, received {what.strip('_')}: the records that a step has trained would "
        "be unknown. Shuffle with from_...(shuffle=True); filter before the data are cut into "
        "tasks, or give the records that are left out a weight of 0"
    )


def _records(batch: Nested) -> tf.Tensor:
    first = tf.nest.flatten(batch)[0]
    if isinstance(first, tf.SparseTensor):
        return first.dense_shape[0]
    if isinstance(first, tf.RaggedTensor):
        return tf.cast(first.nrows(), tf.int64)
    return tf.shape(first, tf.int64)[0]
