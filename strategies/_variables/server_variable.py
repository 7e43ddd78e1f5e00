"""Variables whose values are on parameter servers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.internals.tensorflow import ResourceVariable


def _writes(name: str) -> Callable:
    """Wraps a method of ResourceVariable that changes the value."""
    original = getattr(ResourceVariable, name)

    @functools.wraps(original)
    def write(self, *args, **kwargs):
        self._parameters.touch(self)
        return self._written(original(self, *args, **kwargs))

    return write


def _reads(name: str) -> Callable:
    """Wraps a method of ResourceVariable that reads the value."""
    original = getattr(ResourceVariable, name)

    @functools.wraps(original)
    def read(self, *args, **kwargs):
        self._parameters.touch(self)
        return original(self, *args, **kwargs)

    return read


class ServerVariable(ResourceVariable):
    """A local variable that caches a parameter.

    Within a step it is an ordinary variable: the step pulls it before and pushes it afterwards.
    Outside of a step, reading it eagerly fetches the servers' value. Changing it outside of a step
    writes the new value to the servers if this worker is the chief; a change by another worker
    lasts until its next pull.

    TensorFlow makes the variable; `adopt` changes its class.
    """

    # For tfdist.keras, which cannot import this class.
    is_on_servers = True

    @classmethod
    def adopt(cls, variable: ResourceVariable, parameters: Any, parameter: int) -> ServerVariable:
        """Makes `variable` the cache of a parameter.

        Args:
          variable: was made, or will be initialized, with the servers' value.
          parameters: the `Parameters` of the strategy, which pulls and pushes.
          parameter: the parameter's id.
        """
        variable.__class__ = cls
        variable._parameters = parameters
        variable._parameter = parameter
        return variable

    @property
    def parameter(self) -> int:
        """The parameter's id."""
        return self._parameter

    @property
    def name_on_servers(self) -> str:
        """The parameter's name, which names its values in snapshots."""
        return self._parameters[self._parameter].name

    assign = _writes("assign")
    assign_add = _writes("assign_add")
    assign_sub = _writes("assign_sub")
    scatter_add = _writes("scatter_add")
    scatter_sub = _writes("scatter_sub")
    scatter_max = _writes("scatter_max")
    scatter_min = _writes("scatter_min")
    scatter_mul = _writes("scatter_mul")
    scatter_div = _writes("scatter_div")
    scatter_update = _writes("scatter_update")
    scatter_nd_add = _writes("scatter_nd_add")
    scatter_nd_sub = _writes("scatter_nd_sub")
    scatter_nd_update = _writes("scatter_nd_update")
    _restore_from_tensors = _writes("_restore_from_tensors")

    _read_variable_op = _reads("_read_variable_op")
    sparse_read = _reads("sparse_read")
    gather_nd = _reads("gather_nd")

    def _written(self, result):
        if self._parameters.in_step:
            return result
        if tf.executing_eagerly():
            self._parameters.write([self])
            return result
        operation = result if isinstance(result, tf.Operation) else result.op
        with tf.control_dependencies([operation]):
            written = self._parameters.write([self])
        return written if isinstance(result, tf.Operation) else self._lazy_read(written)
