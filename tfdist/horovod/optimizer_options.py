"""The options of a distributed optimizer, which both Kerases share."""

from __future__ import annotations

import dataclasses
from typing import Any

from tfdist import compression as methods
from tfdist._types import KerasOptimizer
from tfdist.compression import Compression, method_of
from tfdist.horovod.accumulation import Accumulator
from tfdist.horovod.reduction import Reduction

API_NAME = "tfdist.DistributedOptimizer"
# In the config of an optimizer that has local variables: their names.
LOCAL_VARIABLES = "local_variables"


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of a distributed optimizer, which are saved with a model."""

    gradient_reduction: str = "mean"
    backward_passes_per_step: int = 1
    average_aggregated_gradients: bool = False
    compression: str | Compression | type | None = None
    scale_local_gradients: bool = True

    def __post_init__(self) -> None:
        passes = self.backward_passes_per_step
        if not isinstance(passes, int) or isinstance(passes, bool) or passes < 1:
            raise ValueError(
                f"{API_NAME}: expected backward_passes_per_step to be a whole number, 1 or more, "
                f"received {passes!r}"
            )
        object.__setattr__(self, "compression", method_of(self.compression))
        self.reduction()

    def get_config(self) -> dict[str, Any]:
        """These options as numbers, strings and dicts."""
        config = dataclasses.asdict(self)
        if self.compression is not None:
            config["compression"]["method"] = type(self.compression).__name__
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Options:
        """Makes options from the result of `get_config`."""
        chosen = config.get("compression")
        if isinstance(chosen, dict):
            arguments = dict(chosen)
            method = getattr(methods, arguments.pop("method"))
            config = {**config, "compression": method(**arguments)}
        return cls(**config)

    def reduction(self) -> Reduction:
        """Makes the reduction of gradients."""
        return Reduction(
            API_NAME, self.gradient_reduction, self.compression, self.scale_local_gradients
        )

    def accumulator(self) -> Accumulator | None:
        """Makes the accumulator of several passes; `None` with one pass per step."""
        if self.backward_passes_per_step == 1:
            return None
        return Accumulator(
            API_NAME, self.backward_passes_per_step, self.average_aggregated_gradients
        )


def saved(options: Options, reduction: Reduction) -> dict[str, Any]:
    """The entries that a distributed optimizer adds to the plain one's config."""
    names = reduction.local.names()
    return options.get_config() | ({LOCAL_VARIABLES: names} if names else {})


def refuse_distributed(optimizer: KerasOptimizer, mixin: type) -> None:
    """Raises ValueError if an optimizer is distributed already."""
    if isinstance(optimizer, mixin):
        raise ValueError(
            f"{API_NAME}: this {type(optimizer).__name__} is one already, and would reduce twice"
        )
