"""How the gradients of one rank become those of all."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from tfdist import ops, world
from tfdist.strategies.fused_all_reduce import sum_rows


@dataclasses.dataclass(frozen=True)
class Reduction:
    """What is done to the gradients of all ranks.

    Args:
      asked: what the user called, for messages.
      op: "mean" or "sum".
    """

    asked: str
    op: str = "mean"

    def __post_init__(self) -> None:
        if self.op not in ("mean", "sum"):
            raise ValueError(
                f'{self.asked}: expected gradient_reduction to be "mean" or "sum", received '
                f"{self.op!r}"
            )

    def __call__(self, gradients: Sequence) -> list:
        """Reduces over the ranks of this process's job.

        Args:
          gradients: tensors, `tf.IndexedSlices` or None, alike on every rank but for the rows of
            slices. Those that are None stay so.

        Returns:
          As many, the same on every rank; of slices each row once. Alone: what came.

        Raises:
          ValueError: a strategy would reduce them too.
          tfdist.errors.NotInitializedError: this process belongs to no job.
          tf.errors.OpError: as `tfdist.ops.all_reduce`.
        """
        refuse_strategy(self.asked)
        gradients = list(gradients)
        present = [i for i, gradient in enumerate(gradients) if gradient is not None]
        if world.cluster(self.asked).world_size > 1 and present:
            reduced = _all_reduce([gradients[i] for i in present], self.op)
            for i, gradient in zip(present, reduced, strict=True):
                gradients[i] = gradient
        return gradients


def _all_reduce(gradients: list, op: str) -> list:
    reduced = list(gradients)
    dense = [i for i, g in enumerate(gradients) if not isinstance(g, tf.IndexedSlices)]
    if dense:
        sums = ops.all_reduce([gradients[i] for i in dense], reduce_op=op, label="gradients")
        for i, value in zip(dense, sums, strict=True):
            reduced[i] = value
    for i, value in enumerate(gradients):
        if isinstance(value, tf.IndexedSlices):
            reduced[i] = _all_reduce_rows(value, op)
    return reduced


def _all_reduce_rows(slices: tf.IndexedSlices, op: str) -> tf.IndexedSlices:
    values = ops.all_gather(slices.values, label="rows of gradients")
    indices = ops.all_gather(slices.indices, label="indices of gradients")
    if op == "mean":
        values = values / tf.cast(world.size(), values.dtype)
    return sum_rows(tf.IndexedSlices(values, indices, slices.dense_shape))


def refuse_strategy(asked: str) -> None:
    """Refuses to work where a strategy reduces gradients or statistics already.

    Raises:
      ValueError: it is called in the scope of a strategy, or in a step that one runs.
    """
    if tf.distribute.has_strategy():
        name = type(tf.distribute.get_strategy()).__name__
        raise ValueError(
            f"{asked}: expected no tf.distribute strategy, but this is in the scope of {name}, "
            "which reduces over its replicas itself, so that it would be done twice: use one of "
            "the two"
        )
