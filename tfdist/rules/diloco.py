"""DiLoCo: any outer optimizer."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from tfdist.rules.rule import Rule

if TYPE_CHECKING:
    import keras


@dataclasses.dataclass(frozen=True)
class DiLoCo(Rule):
    """An outer optimizer takes the anchor minus the workers' mean as the anchor's gradient.

    Douillard et al., "DiLoCo: distributed low-communication training of language models", 2023.
    They train with AdamW within a round, for hundreds of steps.

    Args:
      outer: an optimizer of Keras 3, which is copied; `None` means the paper's, SGD with rate 0.7
        and Nesterov momentum 0.9.

    Raises:
      TypeError: `outer` is no optimizer of Keras 3.
    """

    outer: keras.Optimizer | None = None

    def __post_init__(self) -> None:
        import keras

        if self.outer is not None and not isinstance(self.outer, keras.optimizers.Optimizer):
            raise TypeError(
                f"DiLoCo: expected outer to be an optimizer of Keras 3, received {self.outer!r}"
            )

    def outer_optimizer(self, workers: int) -> keras.Optimizer:
        """A copy of `outer`."""
        import keras

        if self.outer is None:
            return keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True)
        return type(self.outer).from_config(self.outer.get_config())
