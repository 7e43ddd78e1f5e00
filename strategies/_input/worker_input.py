"""How the workers of a job share a dataset without communicating."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist.config.cluster import Cluster
from tfdist.data.cut.share import own_rows
from tfdist.data.order import splits_batches, tell_of_unseeded
from tfdist.data.pipeline import tracked
from tfdist.data.shares import rows_of
from tfdist.data.strategies import InputSettings
from tfdist.internals.tensorflow import input_ops
from tfdist.ops.ps.prefetched import before_asking

_Policy = tf.data.experimental.AutoShardPolicy
# For type checkers: a `tf.distribute.StrategyExtended` follows the mixin, and has no types.
_Base: Any = object


def share(dataset: tf.data.Dataset, workers: int, rank: int, split: bool) -> tf.data.Dataset:
    """Returns one worker's share of a dataset of batches.

    Args:
      dataset: the same in all workers; its `experimental_distribute.auto_shard_policy` is obeyed.
      workers: the number of workers.
      rank: this worker's rank.
      split: whether every batch is split between the workers; else each batch goes to one worker.

    Returns:
      With `split`, a dataset with the same number of batches, each with this worker's rows; the
      last batch may have no rows. Without `split`, or if workers read files of their own, a dataset
      of this worker's batches.
    """
    if workers == 1 or is_whole(dataset):
        return dataset
    if splits_batches(dataset):
        tell_of_unseeded(dataset, rank)
    if split and _policy(dataset) in (_Policy.AUTO, _Policy.DATA):
        # With TensorFlow's sharding the workers would reach the end at different steps.
        return before_asking(dataset, lambda whole: _cut(whole, workers, rank))
    return before_asking(dataset, lambda whole: input_ops.auto_shard_dataset(whole, workers, rank))


def is_whole(dataset: tf.data.Dataset) -> bool:
    """Whether every worker gets all of a dataset, because the user has disabled sharding."""
    return _policy(dataset) == _Policy.OFF


def number_of_batches(batches: int, workers: int, rank: int) -> int:
    """Returns how many of `batches` batches go to a worker."""
    return len(range(rank, batches, workers))


def _policy(dataset: tf.data.Dataset) -> tf.data.experimental.AutoShardPolicy:
    return dataset.options().experimental_distribute.auto_shard_policy


def _cut(whole: tf.data.Dataset, workers: int, rank: int) -> tf.data.Dataset:
    own = own_rows(whole, workers, rank)
    if own is not None:
        return own
    # `map` unpacks a tuple, but not a named tuple; and a tuple of one component differs from the
    # component.
    if type(whole.element_spec) is tuple:
        return whole.map(lambda *batch: rows_of(batch, workers, rank))
    return whole.map(lambda batch: rows_of(batch, workers, rank))


def _tracked(data: tf.data.Dataset | Callable) -> tf.data.Dataset | Callable:
    """Counts the records of data tasks; an input_fn may also return a function."""
    return before_asking(data, tracked) if isinstance(data, tf.data.Dataset) else data


class SharedInput(_Base):
    """A mixin that distributes the datasets of a strategy whose workers know their ranks.

    Comes before `tf.distribute.StrategyExtended` among the bases.
    """

    _cluster: Cluster
    _share_input = True
    _prepare_input: Callable | None = None

    @contextlib.contextmanager
    def input(self, shared: bool, prepare: Callable | None = None) -> Iterator[None]:
        """Changes how datasets are distributed within.

        Args:
          shared: whether workers share a dataset; else each worker uses all of its own.
          prepare: a function from dataset to dataset, which is applied last.
        """
        before = self._share_input, self._prepare_input
        self._share_input, self._prepare_input = shared, prepare
        try:
            yield
        finally:
            self._share_input, self._prepare_input = before

    @property
    def input_settings(self) -> InputSettings:
        """The arguments of `input` that hold now."""
        return {"shared": self._share_input, "prepare": self._prepare_input}

    @property
    def rank(self) -> int:
        """This worker's rank."""
        assert self._cluster.rank is not None
        return self._cluster.rank

    @property
    def shares_batches(self) -> bool:
        """Whether a batch of a distributed dataset is split between the workers."""
        return self._num_replicas_in_sync > 1

    def deals_out(self, dataset: object) -> bool:
        """Whether workers share `dataset` by whole batches, so that each has fewer of them."""
        return not (
            self.shares_batches or (isinstance(dataset, tf.data.Dataset) and is_whole(dataset))
        )

    def own_batches(self, batches: int) -> int:
        """Returns how many of a dataset's batches this worker gets."""
        return number_of_batches(batches, self._cluster.world_size, self.rank)

    def _experimental_distribute_dataset(self, dataset, options):
        dataset = before_asking(dataset, tracked)
        if self._share_input:
            dataset = share(dataset, self._cluster.world_size, self.rank, self.shares_batches)
        if self._prepare_input is not None:
            dataset = self._prepare_input(dataset)
        return super()._experimental_distribute_dataset(dataset, options)

    def _distribute_datasets_from_function(self, dataset_fn, options):
        return super()._distribute_datasets_from_function(
            lambda _: dataset_fn(self._input_context), options
        )

    def _make_input_fn_iterator(self, input_fn, *args, **kwargs):
        return super()._make_input_fn_iterator(
            lambda _: _tracked(input_fn(self._input_context)), *args, **kwargs
        )

    @property
    def _input_context(self) -> tf.distribute.InputContext:
        return tf.distribute.InputContext(
            self._cluster.world_size, self.rank, self._num_replicas_in_sync
        )
