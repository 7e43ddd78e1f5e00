"""Post-local SGD: in step at first, model averaging afterwards."""

from __future__ import annotations

import dataclasses

from tfdist.rules.model_averaging import ModelAveraging


@dataclasses.dataclass(frozen=True)
class PostLocalSGD(ModelAveraging):
    """Averages after each of the first `warmup_steps` steps, then as `ModelAveraging`.

    Lin, Stich, Patel and Jaggi, "Don't use large mini-batches, use local SGD", 2020. There, the
    first phase sums gradients; with SGD, with and without momentum, averaging after each step is
    the same.

    Args:
      warmup_steps: the length of the first phase in steps.

    Raises:
      ValueError: `warmup_steps` is not a positive integer.
    """

    warmup_steps: int

    def __post_init__(self) -> None:
        steps = self.warmup_steps
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ValueError(
                f"PostLocalSGD: expected warmup_steps to be a positive integer, received {steps!r}"
            )

    @property
    def warmup(self) -> int:
        """The length of the first phase."""
        return self.warmup_steps
