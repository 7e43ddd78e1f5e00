"""The base class of compressors: selects tensors to compress, and sends the others."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist import ops
from tfdist.compression.states import GradientState
from tfdist.ops.collectives.calls import resolve
from tfdist.ops.collectives.compressed import cast16_all_reduce

_REDUCE_OPS = ("sum", "mean")


@dataclasses.dataclass(frozen=True)
class Exchange:
    """The arguments that all collectives of one call have in common."""

    communicator: ops.Communicator
    reduce_op: str
    label: str
    timeout: float | None

    def all_reduce(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """Sums or averages tensors without compression."""
        if not tensors:
            return []
        return ops.all_reduce(
            tensors, self.communicator, self.reduce_op, label=self.label, timeout=self.timeout
        )

    def cast16_all_reduce(self, tensors: list[tf.Tensor], wire_dtype: tf.DType) -> list[tf.Tensor]:
        """Sums or averages tensors that are sent in 16 bits."""
        return cast16_all_reduce(
            tensors,
            self.communicator,
            wire_dtype,
            self.reduce_op,
            label=self.label,
            timeout=self.timeout,
        )

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """Every rank's tensor, in rank order."""
        return ops.all_gather(tensor, self.communicator, label=self.label, timeout=self.timeout)

    def all_to_all(self, tensor: tf.Tensor, splits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The parts of all ranks' tensors for this rank, in rank order, and their lengths."""
        return ops.all_to_all(
            tensor, self.communicator, splits, label=self.label, timeout=self.timeout
        )

    @property
    def divisor(self) -> int:
        """The divisor of a sum."""
        return self.communicator.size if self.reduce_op == "mean" else 1


class Compressor(abc.ABC):
    """All-reduces lists of tensors with compression.

    It belongs to one strategy or one optimizer. A new compressor starts without state. Only
    `LocalUpdateStrategy` saves the state for the next step.

    Args:
      method: the `tfdist.compression` method whose compressor this is.
    """

    def __init__(self, method: Any) -> None:
        self.method = method

    def all_reduce(
        self,
        tensors: Sequence[tf.Tensor],
        communicator: ops.Communicator | None = None,
        reduce_op: str = "sum",
        *,
        label: str = "all_reduce",
        timeout: float | None = None,
        variables: Sequence[tf.Variable | None] | None = None,
    ) -> list[tf.Tensor]:
        """Sums or averages a list of tensors over all ranks.

        Args:
          tensors: dense, of any dtypes of `tfdist.ops.all_reduce`; the same on every rank.
          communicator: the ranks; `None` means the job's ranks.
          reduce_op: "sum" or "mean".
          label: the name in error messages.
          timeout: as for `tfdist.ops.all_reduce`.
          variables: the variables of the gradients, which identify a gradient in the next step;
            `None` stands for an unknown variable. Without a variable a tensor is identified by its
            position in the program: the function, the call in it, the index in the list.

        Returns:
          A list of the same shapes and dtypes: the same values on every rank, bit for bit.

        Raises:
          ValueError: another `reduce_op`, or not one variable for each tensor.
          TypeError: `tf.IndexedSlices` among the tensors; those are sent as rows.

        Raises also the errors of `tfdist.ops.all_reduce`.
        """
        if reduce_op not in _REDUCE_OPS:
            raise ValueError(
                f"compression: expected reduce_op 'sum' or 'mean', received {reduce_op!r}"
            )
        if any(isinstance(t, tf.IndexedSlices) for t in tensors):
            raise TypeError("compression: expected dense tensors, received tf.IndexedSlices")
        variables = [None] * len(tensors) if variables is None else list(variables)
        if len(variables) != len(tensors):
            raise ValueError(
                f"compression: expected a variable for each of {len(tensors)} tensors, received "
                f"{len(variables)}"
            )
        communicator = resolve(communicator, "compression")
        values = [tf.convert_to_tensor(t) for t in tensors]
        exchange = Exchange(communicator, reduce_op, label, timeout)
        indices = [i for i, value in enumerate(values) if self._takes(value)]
        others = [i for i in range(len(values)) if i not in set(indices)]
        taken, plain = [values[i] for i in indices], [values[i] for i in others]
        if taken:
            taken, plain = self._reduce(taken, plain, [variables[i] for i in indices], exchange)
        else:
            plain = exchange.all_reduce(plain)
        results = dict(zip([*indices, *others], [*taken, *plain], strict=True))
        return [results[i] for i in range(len(values))]

    def state_of(self, variable: tf.Variable) -> GradientState | None:
        """The state kept for the gradient of a variable; `None` if the method keeps nothing."""
        return None

    def _takes(self, tensor: tf.Tensor) -> bool:
        """Whether a tensor is compressed."""
        if tensor.dtype not in (tf.float32, tf.float64):
            return False
        elements = tensor.shape.num_elements()
        return elements is None or elements >= self.method.min_elements

    @abc.abstractmethod
    def _reduce(
        self,
        taken: list[tf.Tensor],
        plain: list[tf.Tensor],
        variables: list[tf.Variable | None],
        exchange: Exchange,
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Reduces `taken`, at least one tensor, with compression, and `plain` without."""


class NoCompressor(Compressor):
    """Compresses nothing."""

    def _takes(self, tensor: tf.Tensor) -> bool:
        return False

    def _reduce(self, taken, plain, variables, exchange):
        raise AssertionError("nothing is compressed")
