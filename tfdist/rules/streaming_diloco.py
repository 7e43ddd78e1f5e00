"""Streaming DiLoCo: fragments of the variables are synchronized in turn, beside the training."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tfdist.rules.diloco import DiLoCo
from tfdist.rules.rule import State, check_number


@dataclasses.dataclass(frozen=True)
class StreamingDiLoCo(DiLoCo):
    """DiLoCo for one fragment of the variables after the other, while the workers train on.

    With P fragments and rounds of H steps, each fragment is sent every H steps, H / P steps after
    the one before it. Workers make `delay` more steps while it travels, and then merge it: with x a
    worker's values, and z the anchor after the outer optimizer's step,

        x = mixing x + (1 - mixing) z

    For P = 2, H = 4 and delay = 1:

        step         1   2   3   4   5   6   7   8
        sent             0       1       0       1
        merged               0       1       0

    The bytes are the same as in `DiLoCo`, in parts that travel at different times. One fragment
    without delay and mixing is `DiLoCo`.

    Douillard et al., "Streaming DiLoCo with overlapping communication: towards a distributed free
    lunch", 2025. Fragments are consecutive variables, with about as many elements each.

    Args:
      outer: as in `DiLoCo`. Each fragment has a copy.
      fragments: P, at least 1; at most H, and the number of variables that an optimizer trains.
      delay: in steps, at least 0 and less than H.
      mixing: the weight of a worker's own values, at least 0 and less than 1. Without it the
        steps that it has made meanwhile are lost for the fragment.

    Raises:
      ValueError: an argument is out of range.
      TypeError: `outer` is no optimizer of Keras 3.
    """

    fragments: int = 1
    delay: int = 0
    mixing: float = 0.0
    diverges = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("fragments", 1), ("delay", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(
                    f"StreamingDiLoCo: expected {name} to be an integer of at least {least}, "
                    f"received {value!r}"
                )
        holds = isinstance(self.mixing, int | float) and 0 <= self.mixing < 1
        check_number("StreamingDiLoCo", "mixing", self.mixing, "0 <= mixing < 1", holds)

    def check_round(self, sync_every: int) -> None:
        """Raises ValueError if the fragments do not fit into rounds of `sync_every` steps."""
        for name, value, limit in (
            ("fragments", self.fragments, sync_every),
            ("delay", self.delay, sync_every - 1),
        ):
            if value > limit:
                raise ValueError(
                    f"StreamingDiLoCo: expected {name} of at most {limit} with "
                    f"sync_every={sync_every}, received {value}"
                )

    def next_value(
        self, x: tf.Tensor, before: tf.Tensor, anchor: tf.Tensor, state: State
    ) -> tf.Tensor:
        """A mixture of the worker's own value and the anchor."""
        if self.mixing == 0:
            return anchor
        mixing = tf.cast(self.mixing, x.dtype)
        return mixing * x + (1 - mixing) * anchor
