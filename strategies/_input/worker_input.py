"""How workers share out a dataset without talking to each other."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.python.distribute import input_ops

from tfdist import ops

_Policy = tf.data.experimental.AutoShardPolicy


def share(dataset: tf.data.Dataset, workers: int, rank: int, split: bool) -> tf.data.Dataset:
    """Returns one worker's share of a dataset of batches.

    Args:
      dataset: the same in all workers; its `experimental_distribute.auto_shard_policy` is obeyed.
      workers: how many share it.
      rank: which of them this one is.
      split: whether every batch is split between the workers, or dealt to one of them.

    Returns:
      With `split`, a dataset of as many batches, each with this worker's rows, of which the last
      batch may have none. Without, or where workers read files of their own, its batches.
    """
    if workers == 1 or is_whole(dataset):
        return dataset
    if split and _policy(dataset) in (_Policy.AUTO, _Policy.DATA):
        # Not TensorFlow's sharding: with it, workers come to the end at different steps.
        return ops.before_asking(dataset, lambda whole: _cut(whole, workers, rank))
    return ops.before_asking(
        dataset, lambda whole: input_ops.auto_shard_dataset(whole, workers, rank)
    )


def is_whole(dataset: tf.data.Dataset) -> bool:
    """Whether every worker gets all of a dataset, because the user wants no sharing."""
    return _policy(dataset) == _Policy.OFF


def number_of_batches(batches: int, workers: int, rank: int) -> int:
    """How many of so many batches are dealt to a worker."""
    return len(range(rank, batches, workers))


def _policy(dataset: tf.data.Dataset) -> _Policy:
    return dataset.options().experimental_distribute.auto_shard_policy


def _cut(whole: tf.data.Dataset, workers: int, rank: int) -> tf.data.Dataset:
    # Of a tuple, but not of a named one, `map` passes the components; and a tuple of one is
    # something else than that one.
    if type(whole.element_spec) is tuple:
        return whole.map(lambda *batch: _rows_of(batch, workers, rank))
    return whole.map(lambda batch: _rows_of(batch, workers, rank))


def _rows_of(batch, workers: int, rank: int):
    """Splits as TensorFlow does: equal shares, the last ones short or empty."""
    rows = tf.shape(tf.nest.flatten(batch)[0])[0]
    size = (rows + workers - 1) // workers
    first, last = rank * size, (rank + 1) * size

    def cut(value):
        if isinstance(value, tf.SparseTensor):
            start = tf.concat([[first], tf.zeros_like(value.dense_shape[1:], tf.int32)], 0)
            shape = tf.concat([[size], tf.cast(value.dense_shape[1:], tf.int32)], 0)
            return tf.sparse.slice(value, tf.cast(start, tf.int64), tf.cast(shape, tf.int64))
        return value[first:last]

    return tf.nest.map_structure(cut, batch)
