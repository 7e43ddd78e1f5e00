"""Consensus by the alternating direction method of multipliers."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import tensorflow as tf

from tfdist.rules.rule import Rule, State, check_number

if TYPE_CHECKING:
    import keras


@dataclasses.dataclass(frozen=True)
class ADMM(Rule):
    """Workers minimize their own losses under the constraint that their variables agree.

    With z the anchor, y_r the dual variables of worker r, and f_r its loss, in a round

        x_r = about argmin of f_r(x) + y_r (x - z) + rho / 2 |x - z|^2     H steps of the optimizer
        z   = sum over r of w_r (x_r + y_r / rho)
        y_r = y_r + rho (x_r - z)

    With a convex loss all x_r approach the minimum of the sum of w_r f_r, also if the workers' data
    differ, where averaging alone goes to another point. The weights w_r should be the same in every
    round.

    Boyd, Parikh, Chu, Peleato and Eckstein, "Distributed optimization and statistical learning via
    the alternating direction method of multipliers", 2011, section 7.1. The minimum in the first
    line is inexact.

    `fit` logs two residuals at the end of an epoch, both small when the workers have agreed:
    `primal_residual`, the norm of all x_r - z, and `dual_residual`, rho sqrt(N) times the norm of
    the last change of z.

    Args:
      rho: the penalty, above 0.

    Raises:
      ValueError: `rho` is out of range.
    """

    rho: float
    diverges = True
    state_names = ("dual",)
    residual_names = ("primal_residual", "dual_residual")

    def __post_init__(self) -> None:
        holds = isinstance(self.rho, int | float) and self.rho > 0
        check_number("ADMM", "rho", self.rho, "rho > 0", holds)

    def outer_optimizer(self, workers: int) -> keras.Optimizer:
        """SGD with rate 1."""
        import keras

        return keras.optimizers.SGD(1.0)

    def gradient(
        self, gradient: tf.Tensor, x: tf.Tensor, anchor: tf.Tensor, state: State
    ) -> tf.Tensor:
        """The gradient of the augmented Lagrangian."""
        rho = tf.cast(self.rho, x.dtype)
        return gradient + tf.cast(state["dual"] + rho * (x - anchor), gradient.dtype)

    def contribution(self, x: tf.Tensor, anchor: tf.Tensor, state: State) -> tf.Tensor:
        """x + y / rho."""
        return x + state["dual"] / tf.cast(self.rho, x.dtype)

    def next_value(
        self, x: tf.Tensor, before: tf.Tensor, anchor: tf.Tensor, state: State
    ) -> tf.Tensor:
        """The worker's own value; updates y."""
        state["dual"].assign_add(tf.cast(self.rho, x.dtype) * (x - anchor))
        return x

    def squared_residuals(
        self, x: tf.Tensor, before: tf.Tensor, anchor: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        """This worker's parts of the squared residuals."""
        moved = tf.cast(self.rho, x.dtype) * (anchor - before)
        return tf.reduce_sum((x - anchor) ** 2), tf.reduce_sum(moved**2)
