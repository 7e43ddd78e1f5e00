"""The division of a model's state over the workers of a strategy.

This module does not import TensorFlow.
"""

from __future__ import annotations

import dataclasses
import re

STAGES = (1, 2, 3)


@dataclasses.dataclass(frozen=True)
class Sharding:
    """Divides the state of training over the workers, which else have a copy each.

    Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020
    (arXiv:1910.02054), whose stages these are. See docs/guides/large_models.md.

    Args:
      stage: 1 divides the optimizer's slots, such as Adam's moments. 2 also divides the accumulated
        gradients of `gradient_accumulation_steps`; without those it equals 1. 3 also divides the
        trainable variables of layers and their gradients: a layer's are gathered before it
        computes, and again for its gradients.
      units: of stage 3, a regular expression that matches the names of layers, such as
        "block_[0-9]+": the variables of such a layer, and of layers in it, are gathered together;
        `None`: each layer's are gathered on their own.
      elementwise: classes of optimizers of your own that may be divided: each element of a
        variable is updated by its own gradient and slots alone, and `update_step` writes only by
        `self.assign`, `self.assign_add` and `self.assign_sub`. The elementwise optimizers of Keras
        are known.

    Raises:
      ValueError: an unknown stage, `units` of another stage than 3, or no regular expression.
      TypeError: `elementwise` has something other than classes.

    Example:
      >>> Sharding(stage=1)
      Sharding(stage=1, units=None, elementwise=())
    """

    stage: int = 1
    units: str | None = None
    elementwise: tuple[type, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.stage, bool) or self.stage not in STAGES:
            raise ValueError(
                f"Sharding: expected stage to be one of {', '.join(map(str, STAGES))}, received "
                f"{self.stage!r}"
            )
        self._check_units()
        object.__setattr__(self, "elementwise", tuple(self.elementwise))
        for kind in self.elementwise:
            if not isinstance(kind, type):
                raise TypeError(
                    f"Sharding: expected classes of optimizers as elementwise, received {kind!r}"
                )

    def _check_units(self) -> None:
        if self.units is None:
            return
        if self.stage != 3:
            raise ValueError(
                f"Sharding: expected units=None with stage {self.stage}, received {self.units!r}"
            )
        try:
            re.compile(self.units)
        except (re.error, TypeError) as error:
            raise ValueError(
                "Sharding: expected a regular expression as units, received "
                f"{self.units!r}: {error}"
            ) from error
