"""Error feedback: the values that a step did not send are added to the next step's gradient.

With g_t the gradient of step t, C the compression of a method, and e_0 = 0:

    a_t = g_t + e_t,  C(a_t) is applied,  e_{t+1} = a_t - C(a_t)

The sum that was applied, C(a_0) + ... + C(a_t), equals g_0 + ... + g_t - e_{t+1}: nothing is lost,
only delayed. Karimireddy et al., "Error feedback fixes SignSGD and other
gradient compression schemes", 2019.
"""

from __future__ import annotations

import abc
from typing import Any

import tensorflow as tf

from tfdist.compression.compressor import Compressor, Exchange
from tfdist.compression.states import GradientState, GradientStates


class FeedbackCompressor(Compressor):
    """Compresses float32 tensors of known shapes, each with a state; float64 ones in float32.

    Args:
      method: a method that has a `start_iteration`.
    """

    def __init__(self, method: Any) -> None:
        super().__init__(method)
        self._states = GradientStates()

    def state_of(self, variable: tf.Variable) -> GradientState:
        """The residual, and what else the method keeps."""
        return self._states.of_variable(variable)

    def _takes(self, tensor: tf.Tensor) -> bool:
        return tensor.shape.is_fully_defined() and super()._takes(tensor)

    def _reduce(self, taken, plain, variables, exchange):
        states = self._states.of(taken, variables, exchange.communicator.handle)

        def compressed():
            floats = [tf.cast(t, tf.float32) for t in taken]
            reduced, others = self._reduce_compressed(floats, plain, states, exchange)
            return [tf.cast(r, t.dtype) for r, t in zip(reduced, taken, strict=True)], others

        def uncompressed():
            reduced = exchange.all_reduce([*taken, *plain])
            return reduced[: len(taken)], reduced[len(taken) :]

        if self.method.start_iteration == 0:
            return compressed()
        steps = states[0].variable("steps", lambda: tf.zeros([], tf.int64))
        return tf.cond(
            steps.assign_add(1, read_value=True) > self.method.start_iteration,
            compressed,
            uncompressed,
        )

    @abc.abstractmethod
    def _reduce_compressed(
        self,
        taken: list[tf.Tensor],
        plain: list[tf.Tensor],
        states: list[GradientState],
        exchange: Exchange,
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """As `_reduce`, with float32 tensors and their states."""


def residual_of(state: GradientState, shape: tf.TensorShape) -> tf.Variable:
    """The variable of the values that were not sent; zeros at first."""
    return state.variable("residual", lambda: tf.zeros(shape))
