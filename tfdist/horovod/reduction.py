"""Reduces gradients over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist import ops
from tfdist.compression import Compressor, compressor
from tfdist.compression.feedback import FeedbackCompressor
from tfdist.horovod.local_variables import LocalVariables, variable_of
from tfdist.job import process
from tfdist.observe.metrics.counters import count_reduction
from tfdist.ops.collectives.world import world


class Reduction:
    """Reduces the gradients of one optimizer or tape over all ranks.

    Args:
      api_name: the name of the function that the user called, for messages.
      op: "mean" or "sum".
      compression: as for `tfdist.CommunicationOptions`; or a `Compressor`, which keeps values that
        it did not send for the next step.
      scale_local_gradients: divide gradients of local variables by the number of ranks.

    Attributes:
      local: the variables whose gradients stay on this rank.

    Raises:
      ValueError: another `op` or `compression`.
      TypeError: `scale_local_gradients` is no bool.
    """

    def __init__(
        self,
        api_name: str,
        op: str = "mean",
        compression: Any = None,
        scale_local_gradients: bool = True,
    ) -> None:
        if op not in ("mean", "sum"):
            raise ValueError(
                f'{api_name}: expected gradient_reduction to be "mean" or "sum", received {op!r}'
            )
        self._api_name = api_name
        self._op = op
        made = compression is None or isinstance(compression, Compressor)
        self._compressor: Compressor | None = compression if made else compressor(compression)
        self.local = LocalVariables(api_name, scale_local_gradients)

    def __call__(self, gradients: Sequence, variables: Sequence) -> list:
        """Reduces over the ranks of this process's job.

        Args:
          gradients: tensors, `tf.IndexedSlices` or None, the same on every rank except the rows of
            slices. A None stays None.
          variables: the variable of each gradient.

        Returns:
          A list of the same length, equal on every rank; slices have each row once. Gradients of
          local variables are this rank's own. With one rank: the gradients as they were given.

        Raises:
          ValueError: a strategy would reduce them too; or local variables of a saved optimizer
            have not been registered again; or the job is elastic, and the compression keeps values
            for the next step.
          tfdist.errors.NotInitializedError: this process belongs to no job.
          tf.errors.OpError: as `tfdist.ops.all_reduce`.
        """
        refuse_strategy(self._api_name)
        gradients = list(gradients)
        if process.is_alone(self._api_name):
            count_reduction(gradients)
            return gradients
        communicator = process.communicator(self._api_name)
        ranks: int | tf.Tensor = communicator.size
        if communicator.resizable:
            self._refuse_feedback()
            _, ranks = world(communicator)
        local = self.local.positions(variables)
        for i in local:
            gradients[i] = self.local.keep(gradients[i], ranks)
        present = [i for i, g in enumerate(gradients) if g is not None and i not in local]
        reduced = ops.fused_all_reduce(
            [gradients[i] for i in present],
            communicator,
            self._op,
            compressor=self._compressor,
            variables=[variable_of(variables[i]) for i in present],
        )
        for i, gradient in zip(present, reduced, strict=True):
            gradients[i] = gradient
        count_reduction(reduced)
        return gradients

    def _refuse_feedback(self) -> None:
        # A newcomer has neither the members' unsent gradients nor their common factors.
        if isinstance(self._compressor, FeedbackCompressor):
            raise ValueError(
                f"{self._api_name}: expected compression fp16, bf16 or none in an elastic job, "
                f"received {self._compressor.method}, which keeps values for the next step"
            )


def refuse_strategy(api_name: str) -> None:
    """Raises an error where a strategy already reduces gradients or statistics.

    Raises:
      ValueError: called in the scope of a strategy, or in a step that a strategy runs.
    """
    if tf.distribute.has_strategy():
        name = type(tf.distribute.get_strategy()).__name__
        raise ValueError(
            f"{api_name}: expected no tf.distribute strategy, but this is in the scope of {name}, "
            "which reduces over its replicas itself, so that it would be done twice: use one of "
            "the two"
        )
