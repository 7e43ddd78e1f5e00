"""Iterators of distributed datasets that `tf.train.Checkpoint` saves and restores.

TensorFlow's own cannot be saved. These save the number of the next batch, of all workers together,
and not the buffers of a pipeline, so that another number of workers can continue from there.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator

import tensorflow as tf

from tfdist._types import DistributedData, Nested
from tfdist.data.openings import Openings, Target, source_of, splits_batches
from tfdist.data.position import InputPosition
from tfdist.data.same_draws import agreement_of
from tfdist.data.strategies import worker_input_of, workers_of

# The classes of the iterators of `strategy.experimental_distribute_dataset(...)`, for which
# TensorFlow, Keras and the functions that users decorate with tf.function ask.
from tfdist.internals.tensorflow import (
    DistributedDataset,
    DistributedDatasetsFromFunction,
    DistributedIterator,
    DistributedIteratorSpec,
    ResourceVariable,
)

_log = logging.getLogger("tfdist")


def positioned(
    strategy: tf.distribute.Strategy,
    dataset: tf.data.Dataset | None,
    distribute: Callable[[tf.data.Dataset], DistributedData],
    distributed: DistributedData,
) -> DistributedData:
    """Returns a distributed dataset whose iterators can be saved.

    Args:
      strategy: which has distributed it.
      dataset: the dataset of global batches; `None` if there is none.
      distribute: distributes another dataset in the same way.
      distributed: the result for `dataset`.

    Returns:
      `distributed` itself where it is none of TensorFlow 2.
    """
    source = source_of(dataset, distributed)
    splits = functools.partial(splits_batches, strategy, dataset)
    kinds = {
        DistributedDataset: PositionedDataset,
        DistributedDatasetsFromFunction: PositionedDatasetsFromFunction,
    }
    # A strategy may have returned a class of its own in the place of TensorFlow's.
    kind = kinds.get(getattr(distributed, "of_tensorflow", type(distributed)))
    if kind is None or not tf.executing_eagerly():
        return distributed
    openings = Openings(
        source, _as_now(strategy, distribute), distributed, splits, agreement_of(strategy)
    )
    return kind(distributed, openings)


def plain(distributed: DistributedData) -> DistributedData:
    """Returns TensorFlow's own dataset, whose iterators do not count."""
    return getattr(distributed, "plain", distributed)


def _as_now(strategy: tf.distribute.Strategy, distribute: Callable) -> Callable:
    """Distributes as now, also where a strategy distributes different data differently."""
    worker_input = worker_input_of(strategy)
    if worker_input is None:
        return distribute
    settings = worker_input.input_settings

    @functools.wraps(distribute)
    def with_settings(dataset: tf.data.Dataset) -> DistributedData:
        with worker_input.input(**settings):
            return distribute(dataset)

    return with_settings


def _workers(strategy: tf.distribute.Strategy) -> int:
    communicator = workers_of(strategy)
    return 1 if communicator is None else communicator.size


class _Positioned:
    """A distributed dataset that counts its iterators.

    Args:
      plain: TensorFlow's own.
      openings: of the same data.
    """

    def __init__(self, plain: tf.distribute.DistributedDataset, openings: Openings) -> None:
        self.__dict__.update(vars(plain))
        self.plain = plain
        self.openings = openings

    def __iter__(self) -> Iterator:
        if not tf.executing_eagerly():
            return iter(self.plain)  # within a function that is being traced
        return PositionedIterator(iter(self.openings), self.openings)


class PositionedDataset(_Positioned, DistributedDataset):
    """Of `experimental_distribute_dataset`."""


class PositionedDatasetsFromFunction(_Positioned, DistributedDatasetsFromFunction):
    """Of `distribute_datasets_from_function`."""


class PositionedIterator(DistributedIterator, tf.train.experimental.PythonState):
    """An iterator that counts its batches, and has the number of the next one as its state.

    Args:
      plain: TensorFlow's own.
      openings: the data; `None` within a function that is being traced.
      counter: the resource of the count there.
    """

    def __init__(
        self,
        plain: DistributedIterator,
        openings: Openings | None,
        counter: tf.Tensor | None = None,
    ) -> None:
        self.__dict__.update(vars(plain))
        self._openings = openings
        self._counter = counter
        if openings is not None:
            self._opening = openings.opening
            self._draws = openings.draws
            with tf.device("/device:CPU:0"):
                # A tf.Variable would be the strategy's.
                self._count = ResourceVariable(openings.batches, dtype=tf.int64, trainable=False)
            self._counter = self._count.handle

    def get_next(self, name: str | None = None) -> Nested:
        """See `tf.distribute.DistributedIterator`."""
        batch = super().get_next(name)
        self._add(tf.constant(1, tf.int64))
        return batch

    def get_next_as_optional(self) -> tf.experimental.Optional:
        """See `tf.distribute.DistributedIterator`."""
        batch = super().get_next_as_optional()
        self._add(tf.cast(batch.has_value(), tf.int64))
        return batch

    def _add(self, batches: tf.Tensor) -> None:
        with tf.device("/device:CPU:0"):
            tf.raw_ops.AssignAddVariableOp(resource=self._counter, value=batches)

    def serialize(self) -> str:
        """The number of the next batch; `tf.train.Checkpoint` calls this."""
        assert self._openings is not None
        return InputPosition(
            opening=self._opening,
            batches=int(self._count),
            workers=_workers(self._strategy),
            draws=self._draws,
            draws_now=self._openings.drawn(),
        ).to_json()

    def deserialize(self, string_value: bytes) -> None:
        """Goes to the batch whose number was saved; `tf.train.Checkpoint` calls this."""
        position = InputPosition.from_json(tf.compat.as_str(string_value))
        openings, workers = self._openings, _workers(self._strategy)
        assert openings is not None
        draws = position.draws
        if draws is None and position.opening == self._opening:
            # Of an older file; this iterator may have drawn the order.
            draws = self._draws
        reasons = openings.go_to(
            Target(
                position.opening,
                position.batches,
                position.opening - 1,
                draws,
                position.draws_now,
            )
        )
        self._iterators = iter(openings)._iterators
        self._opening = position.opening
        self._draws = openings.draws
        self._count.assign(position.batches)
        if position.workers != workers and not openings.splits_batches:
            reasons.append(f"there were {position.workers} workers, which shared its files")
        if reasons:
            _log.warning(
                "the iterator continues at batch %d, but its data cannot be positioned exactly: "
                "%s. The batches that follow are others than without the interruption",
                position.batches,
                "; ".join(dict.fromkeys(reasons)),
            )

    @property
    def _type_spec(self) -> PositionedIteratorSpec:
        return PositionedIteratorSpec.from_value(self)


class PositionedIteratorSpec(DistributedIteratorSpec):
    """The type of a `PositionedIterator`, of which functions that are traced make another."""

    @property
    def value_type(self) -> type:
        """See `tf.TypeSpec`."""
        return PositionedIterator

    @property
    def _component_specs(self) -> list:
        return [*super()._component_specs, tf.TensorSpec([], tf.resource)]

    def _to_components(self, value: PositionedIterator) -> list:
        return [*value._iterators, value._counter]

    def _from_components(self, components: list) -> PositionedIterator:
        *iterators, counter = components
        return PositionedIterator(super()._from_components(iterators), None, counter)

    @staticmethod
    def from_value(value: PositionedIterator) -> PositionedIteratorSpec:
        """See `tf.TypeSpec`."""
        return PositionedIteratorSpec(
            value._input_workers,
            value._element_spec,
            value._strategy,
            value._options,
            value._cardinality,
            value._enable_get_next_as_optional,
            value._replica_order,
        )
