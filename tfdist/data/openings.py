"""Data that counts how often it is opened, and can be opened at a position."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import tensorflow as tf

# A distributed dataset cannot be derived from another one by TensorFlow's public functions.
from tensorflow.python.distribute.input_lib import (
    DistributedDataset,
    DistributedDatasetsFromFunction,
)

from tfdist.data.order import (
    opens_at_first_element,
    reads_files,
    reshuffles,
    shuffles,
    unknown_order,
)
from tfdist.data.pipeline import feed_of
from tfdist.data.position import InputPosition
from tfdist.data.seeds import restored, users_seed

_Policy = tf.data.experimental.AutoShardPolicy


class Source(Protocol):
    """Global batches, which can begin at one of them."""

    def begin_at(
        self, opened: int, opening: int, batches: int, read: int
    ) -> tf.data.Dataset | None:
        """Prepares that the next iterator is opening `opening`, without its first batches.

        Args:
          opened: how often the data was opened so far.
          opening: more than `opened`, or any if the source draws no orders.
          batches: the number of batches to leave out.
          read: of how many openings before `opening` any batch was read.

        Returns:
          A dataset of the global batches that remain; `None` if the one that was distributed in the
          beginning now has just these.
        """

    def unknown_order(self, opening: int) -> list[str]:
        """Why the rows of an opening have another order in another process; none if not."""

    @property
    def draws_orders(self) -> bool:
        """Whether each opening draws an order that no later one can have."""


class DatasetSource:
    """A `tf.data.Dataset` of global batches.

    Args:
      dataset: before it is shared between workers.
    """

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self._dataset = dataset
        self.seed = users_seed()

    def begin_at(
        self, opened: int, opening: int, batches: int, read: int
    ) -> tf.data.Dataset | None:
        """See `Source`; reads the batches to leave out, where the dataset cannot skip them."""
        for number in range(opened + 1, opening):
            iterator = iter(self._dataset)  # a shuffle draws its next order; nothing is read
            if number <= read and opens_at_first_element(self._dataset):
                next(iterator, None)
        return self._dataset.skip(batches) if batches else None

    def unknown_order(self, opening: int) -> list[str]:
        """See `Source`."""
        return unknown_order(self._dataset, opening)

    @property
    def draws_orders(self) -> bool:
        """See `Source`."""
        return reshuffles(self._dataset)

    def restore(self, position: InputPosition) -> list[str]:
        """Returns why a shuffle has another order than before the position."""
        return restored(self.seed, position)[1] if shuffles(self._dataset) else []


class DistributedSource:
    """A dataset that was distributed by its user; all of it that is known is what a worker reads.

    Args:
      distributed: the dataset.
    """

    def __init__(self, distributed: Any) -> None:
        self._distributed = distributed

    def begin_at(
        self, opened: int, opening: int, batches: int, read: int
    ) -> tf.data.Dataset | None:
        """See `Source`; `batches` is 0."""
        for number in range(opened + 1, opening):
            for dataset in _components(self._distributed):
                iterator = iter(dataset)
                if number <= read and opens_at_first_element(dataset):
                    next(iterator, None)
        return None

    def unknown_order(self, opening: int) -> list[str]:
        """See `Source`."""
        return [r for d in _components(self._distributed) for r in unknown_order(d, opening)]

    @property
    def draws_orders(self) -> bool:
        """See `Source`."""
        return any(map(reshuffles, _components(self._distributed)))


class TaskSource:
    """Data tasks: the job's queue knows which records are left; see `tfdist.tasks`."""

    draws_orders = False

    def begin_at(self, opened: int, opening: int, batches: int, read: int) -> None:
        """See `Source`; the queue leaves out what has been trained."""

    def unknown_order(self, opening: int) -> list[str]:
        """See `Source`."""
        return []


def source_of(dataset: Any, distributed: Any) -> Source:
    """Returns the source of some data.

    Args:
      dataset: the dataset of global batches; anything else if there is none.
      distributed: what this worker reads.
    """
    if feed_of(dataset) is not None:
        return TaskSource()
    if isinstance(dataset, tf.data.Dataset):
        return DatasetSource(dataset)
    return DistributedSource(distributed)


class Openings:
    """An iterable that knows which of its iterators this is, and can begin at a batch.

    Args:
      source: the global batches.
      distribute: makes of a dataset of global batches what this worker reads.
      distributed: what this worker reads, from the beginning.
      splits_batches: tells whether each worker reads a share of each global batch. Else it reads
        other batches or files than the others, and leaves out as many of its own.

    Attributes:
      opening: how often the data was opened, from 1 once it was.
      batches: how many batches of this opening were read; the reader counts them.
      openings_read: of how many earlier openings batches were read.
      distributed: what this worker reads, from the beginning.
    """

    def __init__(
        self,
        source: Source,
        distribute: Callable[[tf.data.Dataset], Any],
        distributed: Any,
        splits_batches: Callable[[], bool],
    ) -> None:
        self.source = source
        self.opening = 0
        self.batches = 0
        self.openings_read = 0
        self._distribute = distribute
        self.distributed = distributed
        self._splits_batches = splits_batches
        self._next: tuple[int, int, int] | None = None

    @functools.cached_property
    def splits_batches(self) -> bool:
        """Whether a position holds for all workers together, and for another number of them."""
        return isinstance(self.source, TaskSource) or self._splits_batches()

    def go_to(self, opening: int, batches: int, openings_read: int) -> list[str]:
        """Makes the next iterator begin at a position.

        Args:
          opening: its number.
          batches: how many of its batches to leave out.
          openings_read: of how many openings before it batches were read.

        Returns:
          Why other rows will follow than in the process whose position it is; none if not.
        """
        self._next = opening, batches, openings_read
        reasons = self.source.unknown_order(opening)
        if opening <= self.opening and self.source.draws_orders:
            reasons.append(
                f"shuffle has drawn its order number {self.opening} in this process, and cannot "
                f"go back to number {opening}"
            )
        return reasons

    def prepare(self) -> None:
        """Says that an epoch begins: data that reads ahead of its iterator does so from now on."""
        if getattr(self.source, "reads_ahead", False):
            opening, batches, read = self.next_opening
            self.source.begin_at(self.opening, opening, self._of_all(batches), read)

    def __iter__(self) -> Any:
        opening, batches, read = self.next_opening
        self._next = None
        of_all = self._of_all(batches)
        rest = self.source.begin_at(self.opening, opening, of_all, read)
        data = self.distributed if rest is None else self._distribute(rest)
        if batches > of_all:
            data = _skip_own(data, batches)
        self.opening, self.batches, self.openings_read = opening, batches, read
        return iter(data)

    @property
    def next_opening(self) -> tuple[int, int, int]:
        """The next iterator's number, batches to leave out, and earlier openings that were read."""
        return self._next or (self.opening + 1, 0, self.openings_read + bool(self.batches))

    def _of_all(self, batches: int) -> int:
        """How many of some batches are to be left out before workers share the data."""
        return batches if batches and self.splits_batches else 0


def splits_batches(strategy: tf.distribute.Strategy, dataset: Any) -> bool:
    """Whether workers split each batch of a dataset, rather than share its files or its batches.

    Args:
      strategy: which distributes the dataset.
      dataset: before it is distributed.
    """
    if not isinstance(dataset, tf.data.Dataset):
        return False
    policy = dataset.options().experimental_distribute.auto_shard_policy
    shares_batches = getattr(strategy.extended, "shares_batches", None)
    if shares_batches is not None:  # with parameter servers
        return shares_batches and policy in (_Policy.AUTO, _Policy.DATA, _Policy.OFF)
    if not strategy.extended._in_multi_worker_mode():
        return True
    return policy == _Policy.DATA or (policy == _Policy.AUTO and not reads_files(dataset))


def _components(distributed: Any) -> list[tf.data.Dataset]:
    if isinstance(distributed, DistributedDatasetsFromFunction):
        return distributed._datasets
    if isinstance(distributed, DistributedDataset):
        return distributed._cloned_datasets
    return [distributed]


def _skip_own(distributed: Any, batches: int) -> Any:
    """Returns what a worker reads, without its first batches."""
    if isinstance(distributed, tf.data.Dataset):
        return distributed.skip(batches)
    # A batch of the worker is one of each of its devices.
    workers = distributed._input_workers
    rest = [
        dataset.skip(batches * len(workers.compute_devices_for_worker(i)))
        for i, dataset in enumerate(_components(distributed))
    ]
    options = dict(
        input_workers=workers,
        strategy=distributed._strategy,
        components=rest,
        element_spec=distributed._element_spec,
        options=distributed._options,
        replica_order=distributed._replica_order,
    )
    if isinstance(distributed, DistributedDatasetsFromFunction):
        return DistributedDatasetsFromFunction(**options)
    return DistributedDataset(
        **options, enable_get_next_as_optional=distributed._enable_get_next_as_optional
    )
