"""Model averaging: parallel local SGD."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from tfdist.rules.rule import Rule

if TYPE_CHECKING:
    import keras


@dataclasses.dataclass(frozen=True)
class ModelAveraging(Rule):
    """The anchor becomes the mean of the workers' variables, weighted by rows.

    McMahan et al., "Communication-efficient learning of deep networks from decentralized data",
    2017 (FedAvg); Stich, "Local SGD converges fast and communicates little", 2019.
    """

    def outer_optimizer(self, workers: int) -> keras.Optimizer:
        """SGD with rate 1."""
        import keras

        return keras.optimizers.SGD(1.0)
