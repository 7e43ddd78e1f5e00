"""A variable of which each worker has a part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import tensorflow as tf

from tfdist._types import TensorLike
from tfdist.internals.tensorflow import Callable as TensorCallable
from tfdist.internals.tensorflow import ResourceVariable

_VALUE = "VARIABLE_VALUE"  # the name of a variable's value in a checkpoint


class Parts(Protocol):
    """Where a worker's part is, and the others': `Shards`."""

    def own(self, elements: int) -> slice:
        """This worker's part of a vector."""

    def gather(
        self, parts: Sequence[tf.Tensor], shapes: Sequence[tf.TensorShape], label: str
    ) -> list[tf.Tensor]:
        """Returns tensors of one dtype, of which each worker gives its part."""


class PartVariable(ResourceVariable):
    """A variable whose value here is one part of a vector: of a variable of any shape, flattened.

    In a step it is that part. Outside it is whole: `numpy` and checkpoints have the value of the
    whole shape, which needs all workers, and so do assignments, of which each worker keeps its
    part. Files are therefore as without sharding.

    Args:
      strategy: to which it belongs.
      parts: the workers' parts.
      initial_value: of the whole shape, or a function that returns it; equal on all workers.
      dtype: of the variable.
      name: of the variable.
      trainable: whether gradient tapes watch it.
    """

    is_part = True

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        parts: Parts,
        initial_value: TensorLike | Callable[[], TensorLike],
        dtype: tf.DType | None,
        name: str | None,
        trainable: bool = False,
    ) -> None:
        with tf.init_scope():
            value = initial_value() if callable(initial_value) else initial_value
            whole = tf.convert_to_tensor(value, dtype=dtype)
            self.distribute_strategy = strategy
            self._parts = parts
            self.whole_shape = whole.shape
            super().__init__(self._own(whole), trainable=trainable, dtype=whole.dtype, name=name)

    def _own(self, whole: tf.Tensor) -> tf.Tensor:
        own = tf.reshape(whole, [-1])[self._parts.own(self.whole_shape.num_elements())]
        # A slice would hold the memory of the whole tensor.
        return tf.raw_ops.DeepCopy(x=own)

    def _cut(self, value: TensorLike) -> tf.Tensor:
        """This worker's part of a value, which may be that part already."""
        value = tf.convert_to_tensor(value, dtype=self.dtype)
        is_whole = value.shape == self.whole_shape and value.shape != self.shape
        return self._own(value) if is_whole else value

    def part(self) -> tf.Tensor:
        """Reads this worker's part."""
        return super().read_value()

    def whole(self) -> tf.Tensor:
        """Returns the whole value; all workers call this."""
        name = self.name.partition(":")[0]
        label = f"variable {name}, read whole: needs every worker"
        (whole,) = self._parts.gather([self.part()], [self.whole_shape], label)
        return whole

    def numpy(self):
        """Returns the whole value as an array; all workers call this."""
        return self.whole().numpy()

    def assign(
        self, value: TensorLike, *args: object, **kwargs: object
    ) -> tf.Tensor | tf.Operation | None:
        """Assigns this worker's part, or of a value of the whole shape this worker's part."""
        return super().assign(self._cut(value), *args, **kwargs)

    def assign_add(
        self, delta: TensorLike, *args: object, **kwargs: object
    ) -> tf.Tensor | tf.Operation | None:
        """As `assign`."""
        return super().assign_add(self._cut(delta), *args, **kwargs)

    def assign_sub(
        self, delta: TensorLike, *args: object, **kwargs: object
    ) -> tf.Tensor | tf.Operation | None:
        """As `assign`."""
        return super().assign_sub(self._cut(delta), *args, **kwargs)

    def __repr__(self) -> str:
        # Without the value, which would need all workers.
        return (
            f"<{type(self).__name__} {self.name!r} part={self.shape} of={self.whole_shape} "
            f"dtype={self.dtype.name}>"
        )

    def _serialize_to_tensors(self):
        return {_VALUE: TensorCallable(self.whole, self.dtype, self.device)}

    def _restore_from_tensors(self, restored_tensors):
        return self.assign(restored_tensors[_VALUE])
