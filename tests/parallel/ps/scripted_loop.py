"""A custom training loop of one weight, in which a test can stop between pull and push."""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf

import tfdist
from support.patience import wait_until


class ScriptedLoop:
    """Trains one float64 weight, which begins at 0, by a constant gradient.

    Args:
      gradient: of each step of this worker.
      optimizer: makes the optimizer; by default SGD.
      **options: of the strategy.
    """

    def __init__(
        self,
        gradient: float,
        optimizer: Callable = lambda: keras.optimizers.SGD(1.0),
        **options,
    ) -> None:
        self.strategy = tfdist.ParameterServerStrategy(**options)
        with self.strategy.scope():
            self._weight = tf.Variable(0.0, dtype=tf.float64, name="weight")
            self._optimizer = optimizer()
            self._optimizer.build([self._weight])
        self._gradient = tf.constant(gradient, tf.float64)
        self._steps = 0

    def step(self, within: Callable[[], None] = lambda: None) -> float:
        """Makes a step of rate 1.

        Args:
          within: called between the step's pull and its push.

        Returns:
          The weight that the step has pulled.
        """
        pulled = []

        def replica_step():
            pulled.append(float(self._weight))
            within()
            self._optimizer.apply_gradients([(self._gradient, self._weight)])

        self.strategy.run(replica_step)
        self._steps += 1
        return pulled[0]

    def settle(self) -> None:
        """Waits until the servers have answered all pushes."""
        wait_until(
            lambda: self.strategy.communication_stats().pushes == self._steps, "the last answer"
        )

    @property
    def weight(self) -> float:
        """The servers' value of the weight."""
        return float(self._weight)

    @property
    def iterations(self) -> int:
        """The number of steps of all workers."""
        return int(self._optimizer.iterations.numpy())
