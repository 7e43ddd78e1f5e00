"""Blockwise model-update filtering: model averaging with momentum between rounds."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from tfdist.rules.rule import Rule, check_number

if TYPE_CHECKING:
    import keras


@dataclasses.dataclass(frozen=True)
class BMUF(Rule):
    """The mean's step from the anchor passes through momentum.

    With G the weighted mean of the workers' variables minus the anchor, eta the block momentum and
    zeta the block learning rate:

        D = eta D + zeta G
        anchor = anchor + D                     classic
        anchor = anchor + zeta G + eta D        nesterov

    Chen and Huo, "Scalable training of deep learning machines by incremental block training with
    intra-block parallel optimization and blockwise model-update filtering", 2016. Their Nesterov
    form begins a round at the anchor plus eta D; here that point is the anchor.

    Args:
      block_momentum: eta, in [0, 1). The paper suggests 1 - 1 / workers.
      block_learning_rate: zeta, above 0.
      nesterov: whether to use the Nesterov form.

    Raises:
      ValueError: an argument out of range.
    """

    block_momentum: float
    block_learning_rate: float = 1.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        eta, zeta = self.block_momentum, self.block_learning_rate
        check_number("BMUF", "block_momentum", eta, "0 <= block_momentum < 1", _in(0, eta, 1))
        check_number("BMUF", "block_learning_rate", zeta, "block_learning_rate > 0", _in(0, zeta))
        if zeta == 0:
            raise ValueError("BMUF: expected block_learning_rate > 0, received 0")

    def outer_optimizer(self, workers: int) -> keras.Optimizer:
        """SGD with momentum."""
        import keras

        return keras.optimizers.SGD(
            self.block_learning_rate, momentum=self.block_momentum, nesterov=self.nesterov
        )


def _in(low: float, value: object, high: float = float("inf")) -> bool:
    return isinstance(value, int | float) and low <= value < high
