"""The optimizer of a restored group, until the program applies its own."""

from __future__ import annotations

import re

import tensorflow as tf

from tfdist.strategies._local_updates.saved_state import Values

_SLOT = re.compile(r"(fragment/0/)?slot/(\d+)")


class FormerOptimizer:
    """Stands for an optimizer that this process has not applied yet.

    A round that was restored may end before the first step of this process, with an epoch. The
    group of this optimizer ends it. Make it outside of graphs and scopes.

    Args:
      values: of a worker's group, by the names of `saved_state`.

    Attributes:
      variables: the optimizer's variables, without its learning rate.
      are_reset: whether its floating-point ones have to become what they were at first.
    """

    name = "the optimizer of a checkpoint"

    def __init__(self, values: Values) -> None:
        found = [(match[2], v) for k, v in values.items() if (match := _SLOT.fullmatch(k))]
        self.variables = [tf.Variable(value) for _, value in sorted(found, key=_number)]
        self.are_reset = tf.Variable(False)


def _number(found: tuple[str, object]) -> int:
    return int(found[0])
