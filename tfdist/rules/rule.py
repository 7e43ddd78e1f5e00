"""The base class of all rules.

A round is the H steps that the workers train alone. At its end, with x_r the variables of worker r,
w_r the worker's share of all rows of the round, and z the anchor, where the round began:

    g = z - sum over r of w_r x_r        the pseudo-gradient
    z = one step of the outer optimizer with g
    x_r = z

SGD with rate 1 as the outer optimizer makes z the weighted mean. A rule selects the outer
optimizer, and may change what a worker sends, how it trains, and where it continues.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

import tensorflow as tf

if TYPE_CHECKING:
    import keras

State = dict[str, tf.Variable]


class Rule(abc.ABC):
    """How the workers' variables are combined.

    The methods are called for one variable of one worker. `x` is its value on the worker, `anchor`
    the anchor's value, and `state` holds the rule's own variables for it, zeros at first.
    """

    # Whether a worker continues from another value than the anchor.
    diverges = False
    # Whether a worker combines its variables with a centre on the parameter servers, by itself.
    asynchronous = False
    # The names of the rule's own variables, one for each of the worker's.
    state_names: tuple[str, ...] = ()
    # The names of the norms that are logged, whose squares are sums over variables and workers.
    residual_names: tuple[str, ...] = ()

    @property
    def warmup(self) -> int:
        """The number of first steps after each of which the workers average."""
        return 0

    @abc.abstractmethod
    def outer_optimizer(self, workers: int) -> keras.Optimizer:
        """Returns a new Keras optimizer, which is applied to the anchor.

        Args:
          workers: their number.

        Raises:
          ValueError: the rule does not work with that number.
        """

    def contribution(self, x: tf.Tensor, anchor: tf.Tensor, state: State) -> tf.Tensor:
        """A worker's part of the weighted mean: `x`."""
        return x

    def gradient(
        self, gradient: tf.Tensor, x: tf.Tensor, anchor: tf.Tensor, state: State
    ) -> tf.Tensor:
        """The gradient that a worker applies when it trains alone: its own."""
        return gradient

    def next_value(
        self, x: tf.Tensor, before: tf.Tensor, anchor: tf.Tensor, state: State
    ) -> tf.Tensor:
        """Where a worker continues: at the anchor.

        Args:
          x: the worker's value at the end of the round.
          before: the anchor before the outer optimizer's step.
          anchor: the anchor after it.
          state: the rule's own variables.
        """
        return anchor

    def squared_residuals(
        self, x: tf.Tensor, before: tf.Tensor, anchor: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        """This worker's parts of the squares of `residual_names`; arguments as `next_value`."""
        return ()


def check_number(owner: str, name: str, value: object, condition: str, holds: bool) -> float:
    """Returns a rule's argument as a float.

    Raises:
      ValueError: it is not a number, or `holds` is false; names the `condition`.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not holds:
        raise ValueError(f"{owner}: expected {condition}, received {name}={value!r}")
    return float(value)
