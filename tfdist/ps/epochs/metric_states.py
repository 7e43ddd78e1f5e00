"""The states of metrics, as workers and a parameter server exchange them.

A state holds the variables of an epoch's metrics: sums, counts, histograms. The states of several
workers are merged as each variable's aggregation over replicas says.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import numpy as np

AGGREGATIONS = ("sum", "mean", "first")
# The merged state must fit into one message of the control plane.
MAX_BYTES = 8 * 2**20
_KINDS = {"f": np.float64, "i": np.int64}
_MAX_FIELDS = 2000


class StateError(ValueError):
    """A state is invalid, or differs from the others'; the text names the difference."""


@dataclasses.dataclass(frozen=True)
class Field:
    """One variable.

    Args:
      kind: "f": floating-point, sent as float64; "i": integer, sent as int64.
      elements: the number of its elements.
      aggregation: one of `AGGREGATIONS`; "first" takes the value of the lowest rank in the round.
    """

    kind: str
    elements: int
    aggregation: str

    @property
    def is_valid(self) -> bool:
        """Whether there can be such a variable."""
        return self.kind in _KINDS and self.aggregation in AGGREGATIONS and self.elements >= 0


@dataclasses.dataclass(frozen=True)
class MetricStates:
    """The variables of one worker, or merged variables of several.

    Args:
      fields: the variables.
      content: their elements one after the other, 8 bytes each, in the machine's byte order.
    """

    fields: tuple[Field, ...] = ()
    content: bytes = b""

    @classmethod
    def of(cls, arrays: Sequence[np.ndarray], aggregations: Sequence[str]) -> MetricStates:
        """Makes a state of arrays.

        Raises:
          StateError: an array is not numeric, or the state is too large.
        """
        fields, content = [], []
        for array, aggregation in zip(arrays, aggregations, strict=True):
            array = np.asarray(array)
            kind = "i" if array.dtype.kind in "iub" else "f"
            try:
                content.append(array.astype(_KINDS[kind]).tobytes())
            except (TypeError, ValueError) as error:
                raise StateError(f"expected numbers, received {array.dtype}") from error
            fields.append(Field(kind, array.size, aggregation))
        state = cls(tuple(fields), b"".join(content))
        if len(state.content) > MAX_BYTES or len(fields) > _MAX_FIELDS:
            raise StateError(
                f"expected at most {_MAX_FIELDS} variables and {MAX_BYTES} bytes, received "
                f"{len(fields)} variables and {len(state.content)} bytes"
            )
        return state

    def arrays(self) -> list[np.ndarray]:
        """Returns the elements of each variable as a flat float64 or int64 array."""
        arrays, begin = [], 0
        for field in self.fields:
            end = begin + 8 * field.elements
            arrays.append(np.frombuffer(self.content[begin:end], _KINDS[field.kind]))
            begin = end
        return arrays

    def description(self) -> str:
        """Describes the variables; states with the same description can be merged."""
        return json.dumps([[f.kind, f.elements, f.aggregation] for f in self.fields])

    def check(self) -> None:
        """Checks what has come in a message.

        Raises:
          StateError: it is no state.
        """
        if len(self.fields) > _MAX_FIELDS or not all(field.is_valid for field in self.fields):
            raise StateError(
                f"expected the states of metrics, received {len(self.fields)} variables: "
                f"{self.description()[:80]!r}"
            )
        if len(self.content) != 8 * sum(field.elements for field in self.fields):
            raise StateError(
                f"expected the states of metrics, received {len(self.content)} bytes for "
                f"{self.description()[:80]!r}"
            )


def merge(states: Sequence[MetricStates]) -> MetricStates:
    """Merges the states of several workers.

    Args:
      states: at least one, in the order of ranks, all of the same variables.

    Raises:
      StateError: the states are of different variables.
    """
    first = states[0]
    for other in states[1:]:
        if other.fields != first.fields:
            raise StateError(
                f"expected the same metrics on all workers, {first.description()[:200]}, received "
                f"{other.description()[:200]}"
            )
    merged = []
    for field, *parts in zip(first.fields, *(state.arrays() for state in states), strict=True):
        if field.aggregation == "first":
            value = parts[0]
        else:
            value = np.sum(parts, axis=0)
            if field.aggregation == "mean":
                value = value / len(parts)
                value = np.rint(value) if field.kind == "i" else value
        merged.append(value.astype(_KINDS[field.kind]).tobytes())
    return MetricStates(first.fields, b"".join(merged))
