"""A trainable variable of which each worker has a part, and that layers read whole."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tfdist._types import TensorLike
from tfdist.strategies._sharding.part_variable import PartVariable
from tfdist.strategies._sharding.shards import Shards
from tfdist.strategies._sharding.units import Trace


class GatheredVariable(PartVariable):
    """A trainable `PartVariable`, which is gathered where it is read.

    Its gradient is the part of the sum of all workers' gradients.

    Args:
      strategy: to which it belongs.
      shards: the workers' parts.
      path: of the variable, such as "model/dense/kernel".
      initial_value: a function that returns the whole value, equal on all workers.
      dtype: of the variable.
      name: of the variable.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        shards: Shards,
        path: str,
        initial_value: Callable[[], TensorLike],
        dtype: tf.DType | None,
        name: str | None,
    ) -> None:
        super().__init__(strategy, shards, initial_value, dtype, name, trainable=True)
        assert shards.units is not None
        self._shards = shards
        self._unit = shards.units.add(path, self)

    def value(self) -> tf.Tensor:
        """Reads the whole value; in a function it travels with the others of its layer."""
        if tf.executing_eagerly():
            return self.whole()
        trace = Trace.of(tf.compat.v1.get_default_graph())
        return trace.read(self._unit, self, self._shards)

    def read_value(self) -> tf.Tensor:
        """As `value`."""
        return self.value()

    def _note_assignment(self) -> None:
        if not tf.executing_eagerly():
            Trace.of(tf.compat.v1.get_default_graph()).assigned(self._unit)

    def assign(
        self, value: TensorLike, *args: object, **kwargs: object
    ) -> tf.Tensor | tf.Operation | None:
        """As `PartVariable.assign`; layers gather the new value."""
        self._note_assignment()
        return super().assign(value, *args, **kwargs)

    def assign_add(
        self, delta: TensorLike, *args: object, **kwargs: object
    ) -> tf.Tensor | tf.Operation | None:
        """As `assign`."""
        self._note_assignment()
        return super().assign_add(delta, *args, **kwargs)

    def assign_sub(
        self, delta: TensorLike, *args: object, **kwargs: object
    ) -> tf.Tensor | tf.Operation | None:
        """As `assign`."""
        self._note_assignment()
        return super().assign_sub(delta, *args, **kwargs)

    def _dense_var_to_tensor(self, dtype=None, name=None, as_ref=False):
        del name, as_ref
        if dtype is not None and not self.dtype.is_compatible_with(dtype):
            raise ValueError(
                f"variable {self.name!r}: expected a conversion to {self.dtype.name}, received "
                f"{tf.as_dtype(dtype).name}"
            )
        return self.value()
