"""The parameters of the servers: pull, push, wait."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.ops import library
from tfdist.ops.ps.client_c_api import CLIENT
from tfdist.ops.ps.dtypes import DTYPES
from tfdist.ops.ps.optimizer_config import OptimizerConfig
from tfdist.ops.ps.variable_handles import ParameterHandle, attributes_of


class ServerParameters:
    """The parameters of the servers: pull, push, wait.

    A face of a `ParameterClient`.

    Args:
      handle: the client's.
    """

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def add(self, name: str, dtype: tf.DType, shards: Sequence[Any]) -> int:
        """Registers a parameter and returns its id.

        Args:
          name: the same in all workers.
          dtype: of its elements.
          shards: from `Placement.shards`.
        """
        count = len(shards)
        parameter = ctypes.c_int()
        CLIENT.add_parameter(
            self.handle,
            name.encode(),
            DTYPES[dtype],
            sum(s.count for s in shards),
            count,
            (ctypes.c_int * count)(*(s.server for s in shards)),
            (ctypes.c_char_p * count)(*(s.name.encode() for s in shards)),
            (ctypes.c_uint64 * count)(*(s.first for s in shards)),
            (ctypes.c_uint64 * count)(*(s.count for s in shards)),
            ctypes.byref(parameter),
        )
        return parameter.value

    def bind(
        self, config: OptimizerConfig, bindings: Sequence[tuple[int, Sequence[int], float]]
    ) -> None:
        """Makes the servers update parameters by gradients.

        Args:
          config: the optimizer.
          bindings: for each parameter its id, the ids of its slots, and its weight decay.

        Raises:
          tf.errors.OpError: a server refused, or did not answer.
        """
        count = len(bindings)
        all_slots = [slot for _, slots, _ in bindings for slot in slots]
        CLIENT.bind(
            self.handle,
            ctypes.byref(config),
            count,
            (ctypes.c_int * count)(*(parameter for parameter, _, _ in bindings)),
            (ctypes.c_int * count)(*(len(slots) for _, slots, _ in bindings)),
            (ctypes.c_int * len(all_slots))(*all_slots),
            (ctypes.c_double * count)(*(decay for _, _, decay in bindings)),
        )

    def exclude(self, parameter: int) -> None:
        """Leaves a parameter out of the pulls that begin a step."""
        CLIENT.exclude(self.handle, parameter)

    def initial_value(self, parameter: int, value: tf.Tensor) -> tf.Tensor:
        """Creates a parameter with `value` unless the servers have it; returns their value."""
        result = library.graph_ops().tfdist_ps_initial_value(
            value=value, client=self.handle, parameter=parameter
        )
        return tf.ensure_shape(result, value.shape)

    def pull(self, variables: Sequence[ParameterHandle], begins_step: bool) -> tf.Operation | None:
        """Brings variables up to date; with `begins_step` a step begins."""
        return library.graph_ops().tfdist_ps_pull(
            **attributes_of(self.handle, variables), begins_step=begins_step
        )

    def push(
        self, variables: Sequence[ParameterHandle], ends_step: bool = True, waits: bool = False
    ) -> tf.Operation | None:
        """Sends the staged gradients and the variables' deltas.

        Args:
          variables: the variables.
          ends_step: whether the step ends.
          waits: whether the operation waits for the servers' answers, and fails if one refuses.

        Returns:
          The operation, in a graph.
        """
        return library.graph_ops().tfdist_ps_push(
            **attributes_of(self.handle, variables), ends_step=ends_step, waits=waits
        )

    def set(self, variables: Sequence[ParameterHandle], write: bool) -> tf.Operation | None:
        """Writes the variables' values to the servers; without `write`, drops pulled values."""
        return library.graph_ops().tfdist_ps_set(
            **attributes_of(self.handle, variables), write=write
        )

    def stage(
        self,
        variables: Sequence[tf.Variable],
        gradients: Sequence[tf.Tensor | tf.IndexedSlices],
        learning_rate: tf.Tensor,
        step: tf.Tensor,
    ) -> tf.Operation | None:
        """Holds gradients for the push that ends the step.

        Args:
          variables: bound to an optimizer on the servers.
          gradients: for each variable a tensor of its shape and dtype, or some of its rows.
          learning_rate: a scalar.
          step: a scalar, counted from 1.
        """
        of_rows = [isinstance(gradient, tf.IndexedSlices) for gradient in gradients]
        tensors = []
        for variable, gradient in zip(variables, gradients, strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                tensors += [tf.cast(gradient.values, variable.dtype), gradient.indices]
            else:
                tensors.append(tf.cast(gradient, variable.dtype))
        return library.graph_ops().tfdist_ps_stage(
            **attributes_of(self.handle, variables),
            gradients=tensors,
            learning_rate=tf.cast(learning_rate, tf.float64),
            step=tf.cast(step, tf.int64),
            of_rows=of_rows,
        )

    def push_accumulated(self) -> None:
        """Pushes the steps that `n_push` has held back; does not wait for the servers.

        Raises:
          tf.errors.OpError: the pushed values are invalid.
        """
        CLIENT.push_accumulated(self.handle)
