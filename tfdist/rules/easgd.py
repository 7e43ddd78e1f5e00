"""Elastic averaging SGD, in its synchronous and its asynchronous form."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import tensorflow as tf

from tfdist.rules.rule import Rule, State, check_number

if TYPE_CHECKING:
    import keras


@dataclasses.dataclass(frozen=True)
class EASGD(Rule):
    """Workers and a centre attract each other; each worker continues from its own variables.

    With c the centre, which is the anchor, and N workers with the same number of rows, at the end
    of a round:

        x_r = x_r - alpha (x_r - c)
        c   = c + alpha sum over r of (x_r - c)

    both with the values before. For c that is SGD with rate N alpha. Where workers have different
    numbers of rows, N times their weighted mean stands for the sum.

    In the asynchronous form the centre is on parameter servers. Each worker meets it alone, after
    its own H steps and without waiting for the others, by the same two lines for its own r. At the
    end of an epoch the workers wait for each other, and all continue from the centre.

    Zhang, Choromanska and LeCun, "Deep learning with elastic averaging SGD", 2015. With momentum
    in the workers' optimizer it is their EAMSGD.

    Args:
      alpha: the elasticity, above 0 and at most 1 / N, or 1 in the asynchronous form. The paper
        uses 0.9 / N.
      asynchronous: whether each worker meets the centre alone; needs `ps` tasks.

    Raises:
      ValueError: `alpha` is out of range.
    """

    alpha: float
    asynchronous: bool = False
    diverges = True

    def __post_init__(self) -> None:
        alpha = self.alpha
        holds = isinstance(alpha, int | float) and 0 < alpha <= 1
        check_number("EASGD", "alpha", alpha, "0 < alpha <= 1 / workers", holds)

    def outer_optimizer(self, workers: int) -> keras.Optimizer:
        """SGD with rate N alpha."""
        import keras

        # 0.9 / N and 1 / N have rounding errors.
        if not self.asynchronous and self.alpha * workers > 1 + 1e-9:
            raise ValueError(
                f"EASGD: expected 0 < alpha <= 1 / workers with {workers} workers, received "
                f"alpha={self.alpha!r}"
            )
        return keras.optimizers.SGD(self.alpha * workers)

    def next_value(
        self, x: tf.Tensor, before: tf.Tensor, anchor: tf.Tensor, state: State
    ) -> tf.Tensor:
        """A step from the worker's own value towards the centre of before."""
        return x - tf.cast(self.alpha, x.dtype) * (x - before)


def largest_stable_alpha(rate: float) -> float:
    """The largest alpha with which asynchronous EASGD is stable on f(x) = x^2 / 2.

    The workers take turns: one makes a gradient step, and it and the centre move towards each
    other. That is stable for 0 <= rate <= 2 and 0 <= alpha <= (4 - 2 rate) / (4 - rate), with any
    number of workers (Zhang et al. 2015); and for no other alpha >= 0, if the number is odd.

    Args:
      rate: the learning rate; for a quadratic of another curvature, times the curvature.

    Raises:
      ValueError: no alpha is stable with this rate.
    """
    if not 0 <= rate <= 2:
        raise ValueError(f"largest_stable_alpha: expected 0 <= rate <= 2, received {rate!r}")
    return (4 - 2 * rate) / (4 - rate)
