"""Data that counts how often it is opened, and can be opened at a position."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Protocol

import tensorflow as tf

from tfdist._types import DistributedData
from tfdist.data import order
from tfdist.data.background_release import release_in_background
from tfdist.data.draws import (
    Drawing,
    SeedGenerator,
    draw_for_opening,
    generators,
    generators_drawn_later,
)
from tfdist.data.order import (
    only_draws_when_opened,
    opens_at_first_element,
    reshuffles,
    shuffles,
    unknown_order,
)
from tfdist.data.pipeline import feed_of
from tfdist.data.position import InputPosition
from tfdist.data.seeds import restored, users_seed
from tfdist.data.strategies import worker_input_of

# A distributed dataset cannot be derived from another one by TensorFlow's public functions.
from tfdist.internals.tensorflow import DistributedDataset, DistributedDatasetsFromFunction

_Policy = tf.data.experimental.AutoShardPolicy


class BatchSource(Protocol):
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
          A dataset of the global batches that remain; `None` if the dataset distributed in the
          beginning now has just these.
        """

    def unknown_order(self, opening: int, draws_are_known: bool = False) -> list[str]:
        """Why the rows of an opening have another order in another process; none if not.

        Args:
          opening: its number, from 1.
          draws_are_known: whether it is known what the shuffles had drawn before.
        """

    @property
    def datasets(self) -> Sequence[tf.data.Dataset]:
        """Datasets whose shuffles draw an order for each opening, if any."""


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
        """See `BatchSource`; reads the batches to leave out, where the dataset cannot skip them."""
        for number in range(opened + 1, opening):
            iterator = iter(self._dataset)  # a shuffle draws its next order; nothing is read
            if number <= read and opens_at_first_element(self._dataset):
                next(iterator, None)
        return self._dataset.skip(batches) if batches else None

    def unknown_order(self, opening: int, draws_are_known: bool = False) -> list[str]:
        """See `BatchSource`."""
        return unknown_order(self._dataset, opening, draws_are_known)

    @property
    def datasets(self) -> list[tf.data.Dataset]:
        """See `BatchSource`."""
        return [self._dataset]

    def restore(self, position: InputPosition) -> list[str]:
        """Returns why a shuffle has another order than before the position."""
        return restored(self.seed, position)[1] if shuffles(self._dataset) else []


class DistributedSource:
    """A dataset that was distributed by its user; only a worker's part of it is known.

    Args:
      distributed: the dataset.
    """

    def __init__(self, distributed: DistributedData) -> None:
        self._distributed = distributed

    def begin_at(
        self, opened: int, opening: int, batches: int, read: int
    ) -> tf.data.Dataset | None:
        """See `BatchSource`; `batches` is 0."""
        for number in range(opened + 1, opening):
            for dataset in _components(self._distributed):
                iterator = iter(dataset)
                if number <= read and opens_at_first_element(dataset):
                    next(iterator, None)
        return None

    def unknown_order(self, opening: int, draws_are_known: bool = False) -> list[str]:
        """See `BatchSource`."""
        return [r for d in self.datasets for r in unknown_order(d, opening, draws_are_known)]

    @property
    def datasets(self) -> list[tf.data.Dataset]:
        """See `BatchSource`."""
        return [d for d in _components(self._distributed) if isinstance(d, tf.data.Dataset)]


class TaskSource:
    """Data tasks: the job's queue knows which records are left; see `tfdist.data.queue`."""

    datasets: Sequence[tf.data.Dataset] = ()

    def begin_at(self, opened: int, opening: int, batches: int, read: int) -> None:
        """See `BatchSource`; the queue leaves out what has been trained."""

    def unknown_order(self, opening: int, draws_are_known: bool = False) -> list[str]:
        """See `BatchSource`."""
        return []


def source_of(dataset: object, distributed: DistributedData) -> BatchSource:
    """Returns the source of some data.

    Args:
      dataset: the dataset of global batches; anything else if there is none.
      distributed: the dataset that this worker reads.
    """
    if feed_of(dataset) is not None:
        return TaskSource()
    if isinstance(dataset, tf.data.Dataset):
        return DatasetSource(dataset)
    return DistributedSource(distributed)


@dataclasses.dataclass(frozen=True)
class Target:
    """Which iterator is made next.

    Args:
      opening: its number, from 1.
      batches: how many of its batches to leave out.
      openings_read: of how many openings before it batches were read.
      draws: how many orders the shuffles had drawn before it, as `Openings.drawn` lists them;
        `None` if that is unknown.
      draws_now: the same when the batches have been left out.
    """

    opening: int
    batches: int = 0
    openings_read: int = 0
    draws: list[int] | None = None
    draws_now: list[int] | None = None


class Openings:
    """An iterable that knows which of its iterators this is, and can begin at a batch.

    Args:
      source: the global batches.
      distribute: makes of a dataset of global batches what this worker reads.
      distributed: the dataset that this worker reads, from the beginning.
      splits_batches: tells whether each worker reads a share of each global batch. Else it reads
        other batches or files than the others, and leaves out as many of its own.
      agree: sets draws to the first worker's draws, for workers that open the data together.

    Attributes:
      opening: how often the data was opened, from 1 once it was.
      batches: how many batches of this opening were read; the reader counts them.
      openings_read: of how many earlier openings batches were read.
      draws: how many orders the shuffles had drawn before this opening; see `drawn`.
      others: the objects that draw orders of data read in between, such as validation data.
      distributed: the dataset that this worker reads, from the beginning.
    """

    def __init__(
        self,
        source: BatchSource,
        distribute: Callable[[tf.data.Dataset], DistributedData],
        distributed: DistributedData,
        splits_batches: Callable[[], bool],
        agree: Callable[[Sequence[SeedGenerator]], None] | None = None,
    ) -> None:
        self.source = source
        self.opening = 0
        self.batches = 0
        self.openings_read = 0
        self.draws: list[int] = []
        self.others: Sequence[Drawing] = ()
        self._distribute = distribute
        self.distributed = distributed
        self._splits_batches = splits_batches
        self._agree = agree
        self._next: Target | None = None

    @functools.cached_property
    def splits_batches(self) -> bool:
        """Whether a position holds for all workers together, and for another number of them."""
        return isinstance(self.source, TaskSource) or self._splits_batches()

    def drawn(self) -> list[int]:
        """How many orders each shuffle of the data, and then of other data, has drawn."""
        return [generator.draws for generator in self._generators()]

    def go_to(self, target: Target) -> list[str]:
        """Makes the next iterator begin at a position.

        Args:
          target: the position.

        Returns:
          Why other rows will follow than in the process whose position it is; none if not.
        """
        reasons = []
        count = len(self._generators())
        if target.draws is not None and len(target.draws) != count:
            reasons.append(
                f"its data has {count} shuffles that draw an order for each iterator, and had "
                f"{len(target.draws)}"
            )
            target = dataclasses.replace(target, draws=None)
        are_known = target.draws is not None
        if not are_known and self._own_generators() and target.opening > self.opening:
            # The orders of the openings before it are drawn now, so that others can be told.
            self.source.begin_at(self.opening, target.opening, 0, target.openings_read)
            self.opening = target.opening - 1
            target = dataclasses.replace(target, draws=self.drawn())
        self._next = target
        reasons += self.source.unknown_order(target.opening, are_known)
        if are_known:
            reasons += self._wrong_draws(target)
        elif target.opening > 1 and any(each in self.others for each in self._own_generators()):
            reasons.append("the validation data has drawn orders of its shuffle, too")
        elif target.opening <= self.opening and any(map(reshuffles, self.source.datasets)):
            reasons.append(
                f"shuffle has drawn its order number {self.opening} in this process, and it is "
                f"not known what it had drawn before number {target.opening}"
            )
        return reasons

    def agree(self) -> None:
        """Continues with the first worker's orders; workers that share batches call it together.

        Raises:
          tf.errors.OpError: a worker was lost.
        """
        if self._agree is not None and self.splits_batches:
            self._agree(self._drawn_later())

    def prepare(self) -> None:
        """Says that an epoch begins: data that reads ahead of its iterator does so from now on."""
        if getattr(self.source, "reads_ahead", False):
            next_one = self.next_opening
            self.source.begin_at(
                self.opening,
                next_one.opening,
                self._of_all(next_one.batches),
                next_one.openings_read,
            )

    def pass_over(self) -> bool:
        """Counts an iterator that will not be read, without making it, if that has the same effect.

        Returns:
          Whether it is counted; else it is to be made.
        """
        if self._next is not None or not isinstance(self.source, DatasetSource):
            return False
        (dataset,) = self.source.datasets
        if not only_draws_when_opened(dataset):
            return False
        target = self.next_opening
        self.opening, self.batches, self.openings_read = target.opening, 0, target.openings_read
        self.draws = self.drawn()
        draw_for_opening(dataset)
        return True

    def __iter__(self) -> tf.data.Iterator | tf.distribute.DistributedIterator:
        target, self._next = self.next_opening, None
        of_all = self._of_all(target.batches)
        opened = self.opening
        if target.draws is not None:
            # Nothing is left to be drawn by opening the data.
            opened = target.opening - 1
            for generator, draws in zip(self._generators(), target.draws, strict=True):
                generator.go_to(draws)
        else:
            self.agree()
        rest = self.source.begin_at(opened, target.opening, of_all, target.openings_read)
        data = self.distributed if rest is None else self._distribute(rest)
        if target.batches > of_all:
            data = _skip_own(data, target.batches)
        self.opening, self.batches = target.opening, target.batches
        self.openings_read = target.openings_read
        self.draws = self.drawn()
        iterator = iter(data)
        if isinstance(iterator, tf.data.Iterator):  # strategies do it for their own
            release_in_background(iterator)
        if target.draws_now is not None:
            later = self._drawn_later()
            for generator, draws in zip(self._generators(), target.draws_now, strict=True):
                if generator not in later:
                    generator.go_to(draws)
        return iterator

    @property
    def present(self) -> Target:
        """This iterator, and the batches of it that were read."""
        return Target(self.opening, self.batches, self.openings_read, self.draws)

    @property
    def next_opening(self) -> Target:
        """The next iterator."""
        return self._next or Target(self.opening + 1, 0, self.openings_read + bool(self.batches))

    def _generators(self) -> list[Drawing]:
        own = self._own_generators()
        return [*own, *(other for other in self.others if other not in own)]

    def _own_generators(self) -> list[Drawing]:
        return list(generators(self.source.datasets))

    def _drawn_later(self) -> list[SeedGenerator]:
        return generators_drawn_later(self.source.datasets)

    def _wrong_draws(self, target: Target) -> list[str]:
        """Why what is drawn for a position is not what was drawn there."""
        assert target.draws is not None
        own, now = self._generators(), target.draws_now or target.draws
        found = [each.why_not(draws) for each, draws in zip(own, now, strict=True)]
        reasons = [reason for reason in found if reason is not None]
        later = self._drawn_later()
        # Batches that are left out draw orders one after the other.
        if any(
            each in later and each in self.others and draws_now > draws + 1
            for each, draws, draws_now in zip(own, target.draws, now, strict=True)
        ):
            reasons.append("the data and the validation data draw orders of one shuffle in turns")
        return reasons

    def _of_all(self, batches: int) -> int:
        """How many of some batches are to be left out before workers share the data."""
        return batches if batches and self.splits_batches else 0


def openings_of(dataset: DistributedData) -> Openings:
    """Returns the openings of data that no strategy of tfdist distributes.

    Args:
      dataset: as this process reads it; another strategy may have distributed it.
    """
    is_whole = isinstance(dataset, tf.data.Dataset)
    return Openings(source_of(dataset, dataset), lambda rest: rest, dataset, lambda: is_whole)


def splits_batches(strategy: tf.distribute.Strategy, dataset: object) -> bool:
    """Whether workers split each batch of a dataset, rather than share its files or its batches.

    Args:
      strategy: which distributes the dataset.
      dataset: before it is distributed.
    """
    if not isinstance(dataset, tf.data.Dataset):
        return False
    policy = dataset.options().experimental_distribute.auto_shard_policy
    worker_input = worker_input_of(strategy)
    if worker_input is not None:  # with parameter servers
        return worker_input.shares_batches and policy in (_Policy.AUTO, _Policy.DATA, _Policy.OFF)
    if not strategy.extended._in_multi_worker_mode():
        return True
    return order.splits_batches(dataset)


def _components(distributed: DistributedData) -> list[tf.data.Dataset]:
    if isinstance(distributed, DistributedDatasetsFromFunction):
        return distributed._datasets
    if isinstance(distributed, DistributedDataset):
        return distributed._cloned_datasets
    return [distributed]


def _skip_own(distributed: DistributedData, batches: int) -> DistributedData:
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
