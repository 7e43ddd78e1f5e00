"""The base class of all strategies."""

from __future__ import annotations

import contextlib
import numbers
from collections.abc import Callable, Sequence
from typing import TypeGuard

import tensorflow as tf

from tfdist import keras
from tfdist._types import Nested
from tfdist.data.iterators import positioned
from tfdist.job import process
from tfdist.keras import scalar_losses
from tfdist.observe.metrics.counters import StepCounter


class StrategyBase(tf.distribute.Strategy):
    """Marks a strategy as one of tfdist's, repairs tf_keras, and reduces nested values.

    Comes before TensorFlow's class among a strategy's bases.
    """

    # For tfdist.keras, which cannot import this class.
    is_of_tfdist = True
    _step_counter: StepCounter | None = None

    def scope(self) -> contextlib.AbstractContextManager:
        """Returns a context manager in which variables and models are made for this strategy.

        Raises:
          ValueError: a `keras.distribution` is set, which Keras ignores with TensorFlow.
        """
        keras.repair_tf_keras()  # it may have been imported since
        keras.refuse_keras_distribution()
        return super().scope()

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of replicas over which gradients are added."""
        scalar_losses.note_division()
        return super().num_replicas_in_sync

    def run(
        self,
        fn: Callable,
        args: Sequence = (),
        kwargs: dict | None = None,
        options: tf.distribute.RunOptions | None = None,
    ) -> Nested:
        """As `tf.distribute.Strategy.run`; counts training steps if this task serves metrics."""
        if not process.current.counts_steps:
            return super().run(fn, args, kwargs, options)
        if self._step_counter is None:
            self._step_counter = StepCounter()
        run = super().run
        return self._step_counter.run(
            self, fn, args, kwargs or {}, lambda: run(fn, args, kwargs, options)
        )

    def reduce(
        self, reduce_op: tf.distribute.ReduceOp | str, value: Nested, axis: int | None
    ) -> Nested:
        """Reduces `value`, which may be nested, as `tf.distribute.Strategy.reduce` does.

        Args:
          reduce_op: "SUM", "MEAN" or a `tf.distribute.ReduceOp`.
          value: a tensor or `tf.distribute.DistributedValues` of any shape, or nested lists, tuples
            and dicts of them.
          axis: also reduce each replica's value along this dimension. Scalars are reduced over the
            replicas only.

        Returns:
          A tensor, or the same structure of tensors.
        """
        # Keras 3 passes whole batches, and scalars with axis=0 (keras-team/keras#20585).
        leaves = tf.nest.flatten(value)
        if tf.nest.is_nested(value) and any(map(_is_tensor, leaves)):
            return tf.nest.map_structure(lambda v: self.reduce(reduce_op, v, axis), value)
        if axis is not None and all(_is_scalar(v) for v in self.experimental_local_results(value)):
            axis = None
        return super().reduce(reduce_op, value, axis)

    def experimental_distribute_dataset(
        self, dataset: tf.data.Dataset, options: tf.distribute.InputOptions | None = None
    ) -> tf.distribute.DistributedDataset:
        """As `tf.distribute.Strategy.experimental_distribute_dataset`.

        `tf.train.Checkpoint` saves and restores the iterators of the result.
        """

        def distribute(rest: tf.data.Dataset) -> tf.distribute.DistributedDataset:
            return self._distribute(rest, options)

        return positioned(self, dataset, distribute, distribute(dataset))

    def distribute_datasets_from_function(
        self,
        dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset],
        options: tf.distribute.InputOptions | None = None,
    ) -> tf.distribute.DistributedDataset:
        """As `tf.distribute.Strategy.distribute_datasets_from_function`.

        `tf.train.Checkpoint` saves and restores the iterators of the result.
        """
        distributed = super().distribute_datasets_from_function(dataset_fn, options)
        return positioned(self, None, lambda rest: rest, distributed)

    def _distribute(
        self, dataset: tf.data.Dataset, options: tf.distribute.InputOptions | None
    ) -> tf.distribute.DistributedDataset:
        """Distributes a dataset as TensorFlow does."""
        return super().experimental_distribute_dataset(dataset, options)


def _is_tensor(value: object) -> TypeGuard[tf.Tensor]:
    """Whether `value` is a tensor, on one replica or on each."""
    return tf.is_tensor(value) or isinstance(value, tf.distribute.DistributedValues)


def _is_scalar(value: object) -> bool:
    # Older releases of Keras reduce Python numbers with run_eagerly=True.
    return isinstance(value, numbers.Number) or (_is_tensor(value) and value.shape.rank == 0)
