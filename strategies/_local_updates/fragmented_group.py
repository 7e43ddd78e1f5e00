"""The variables that one optimizer trains, in fragments that are synchronized one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._types import Gradient, KerasOptimizer, KerasVariable
from tfdist.rules import Rule
from tfdist.strategies._local_updates.group import Group


class FragmentedGroup:
    """Stands for a `Group` where it trains; each of its fragments is a group that ends rounds.

    Args:
      optimizer: of Keras 3 or tf_keras; it has been built.
      variables: the strategy's variables, which `optimizer` trains.
      rule: how workers combine a fragment.
      workers: their number.
      fragments: the number of fragments.

    Raises:
      ValueError: more fragments than variables.
    """

    def __init__(
        self,
        optimizer: KerasOptimizer,
        variables: Sequence[KerasVariable],
        rule: Rule,
        workers: int,
        fragments: int,
    ) -> None:
        if fragments > len(variables):
            raise ValueError(
                f"StreamingDiLoCo: expected at most {len(variables)} fragments, the number of "
                f"variables that {optimizer.name!r} trains, received {fragments}"
            )
        self.rounds: list[Any] = []  # rounds that live as long as this group
        self.restored: dict[str, np.ndarray] = {}  # the values that it has begun with
        self.variables = list(variables)
        bounds = fragment_bounds([int(np.prod(v.shape)) for v in variables], fragments)
        self.fragments = [
            Group(optimizer, self.variables[first:last], rule, workers, "keep")
            for first, last in zip([0, *bounds], [*bounds, len(variables)], strict=True)
        ]

    @property
    def anchors(self) -> list[tf.Variable]:
        """The anchor of each variable."""
        return [anchor for fragment in self.fragments for anchor in fragment.anchors]

    def begin(self) -> None:
        """Begins a round of each fragment, unless one has begun."""
        for fragment in self.fragments:
            fragment.begin()

    def gradient(self, variable: KerasVariable, gradient: Gradient) -> Gradient:
        """The worker's own gradient."""
        return gradient

    def saved(self) -> dict[str, tf.Variable]:
        """As `Group.saved`, of each fragment; the optimizer's variables once."""
        return {
            f"fragment/{i}/{name}": variable
            for i, fragment in enumerate(self.fragments)
            for name, variable in fragment.saved().items()
            if i == 0 or not name.startswith("slot/")
        }

    def copy_anchor(self) -> None:
        """As `Group.copy_anchor`."""
        for fragment in self.fragments:
            fragment.copy_anchor()


def fragment_bounds(sizes: Sequence[int], fragments: int) -> list[int]:
    """Where fragments end but the last one: each has a variable, and about as many elements.

    Args:
      sizes: the elements of each variable, in order.
      fragments: their number, at most the number of variables.
    """
    ends = np.cumsum(sizes)
    bounds: list[int] = []
    for index in range(1, fragments):
        wanted = ends[-1] * index / fragments
        nearest = int(np.argmin(np.abs(ends - wanted))) + 1
        low, high = (bounds[-1] if bounds else 0) + 1, len(sizes) - (fragments - index)
        bounds.append(min(max(nearest, low), high))
    return bounds
