"""How a strategy of workers that know their ranks shares out what they train on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist.config.cluster import Cluster
from tfdist.strategies._input import worker_input


class SharedInput:
    """The input of a `tf.distribute.StrategyExtended`, which comes after this among the bases."""

    _cluster: Cluster
    _share_input = True
    _prepare_input: Callable | None = None

    @contextlib.contextmanager
    def input(self, shared: bool, prepare: Callable | None = None) -> Iterator[None]:
        """How datasets are distributed within.

        Args:
          shared: workers share them out; else each has its own.
          prepare: what a dataset is then given to.
        """
        before = self._share_input, self._prepare_input
        self._share_input, self._prepare_input = shared, prepare
        try:
            yield
        finally:
            self._share_input, self._prepare_input = before

    @property
    def shares_batches(self) -> bool:
        """Whether a batch of a distributed dataset is split between the workers."""
        return self._num_replicas_in_sync > 1

    def own_batches(self, batches: int) -> int:
        """How many of a dataset's batches are dealt to this worker."""
        return worker_input.number_of_batches(batches, self._cluster.world_size, self._cluster.rank)

    def deals_out(self, dataset: Any) -> bool:
        """Whether workers share `dataset` by whole batches, so that each has fewer of them."""
        is_whole = isinstance(dataset, tf.data.Dataset) and worker_input.is_whole(dataset)
        return not (is_whole or self.shares_batches)

    def _experimental_distribute_dataset(self, dataset, options):
        if self._share_input:
            dataset = worker_input.share(
                dataset, self._cluster.world_size, self._cluster.rank, self.shares_batches
            )
        if self._prepare_input is not None:
            dataset = self._prepare_input(dataset)
        return super()._experimental_distribute_dataset(dataset, options)

    def _distribute_datasets_from_function(self, dataset_fn, options):
        return super()._distribute_datasets_from_function(
            lambda _: dataset_fn(self._input_context), options
        )

    def _make_input_fn_iterator(self, input_fn, *args, **kwargs):
        return super()._make_input_fn_iterator(
            lambda _: input_fn(self._input_context), *args, **kwargs
        )

    @property
    def _input_context(self) -> tf.distribute.InputContext:
        return tf.distribute.InputContext(
            self._cluster.world_size, self._cluster.rank, self._num_replicas_in_sync
        )
