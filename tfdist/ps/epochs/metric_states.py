"""The states of metrics as they travel between workers and a parameter server.

A state is the variables of an epoch's metrics: sums, counts, histograms. How those of several
workers become one is what each variable declares for replicas: its aggregation.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Sequence

import numpy as np

AGGREGATIONS = ("sum", "mean", "first")
# Of a state; what comes back has to fit into one message of the control plane.
LARGEST_BYTES = 8 * 2**20
_KINDS = {"f": np.float64, "i": np.int64}
_MOST_FIELDS = 2000


class StateError(ValueError):
    """A state is not what this module encodes, or differs from the others'; the text says how."""


@dataclasses.dataclass(frozen=True)
class Field:
    """One variable.

    Args:
      kind: "f": floating, travels as float64; "i": integer, travels as int64.
      elements: how many numbers it has.
      aggregation: one of `AGGREGATIONS`; "first" is the value of the lowest rank that is there.
    """

    kind: str
    elements: int
    aggregation: str


@dataclasses.dataclass(frozen=True)
class State:
    """The variables of one worker, or of several.

    Args:
      fields: what they are.
      content: their numbers one after the other, 8 bytes each, in the machine's order.
    """

    fields: tuple[Field, ...] = ()
    content: bytes = b""

    @classmethod
    def of(cls, arrays: Sequence[np.ndarray], aggregations: Sequence[str]) -> State:
        """Makes the state of arrays of numbers.

        Raises:
          StateError: an array is not of numbers, or the state is too large to travel.
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
        if len(state.content) > LARGEST_BYTES or len(fields) > _MOST_FIELDS:
            raise StateError(
                f"expected at most {_MOST_FIELDS} variables and {LARGEST_BYTES} bytes, received "
                f"{len(fields)} variables and {len(state.content)} bytes"
            )
        return state

    def arrays(self) -> list[np.ndarray]:
        """The numbers of each variable, float64 or int64 and flat."""
        arrays, begin = [], 0
        for field in self.fields:
            end = begin + 8 * field.elements
            arrays.append(np.frombuffer(self.content[begin:end], _KINDS[field.kind]))
            begin = end
        return arrays

    def description(self) -> str:
        """Says what the variables are; the same text for states that can be put together."""
        return json.dumps([[f.kind, f.elements, f.aggregation] for f in self.fields])

    def encoded(self) -> str:
        """The content as text."""
        return base64.b64encode(self.content).decode()


def parse(description: str, encoded: str) -> State:
    """Returns the state that `description` and `encoded` gave; raises StateError."""
    try:
        fields = tuple(Field(*each) for each in json.loads(description))
        content = base64.b64decode(encoded, validate=True)
        sizes = [field.elements for field in fields]
        known = all(f.kind in _KINDS and f.aggregation in AGGREGATIONS for f in fields)
        fits = known and all(isinstance(n, int) and n >= 0 for n in sizes)
    except (ValueError, TypeError, RecursionError) as error:
        raise StateError(f"expected the states of metrics, received {str(error)[:80]}") from None
    if not fits or len(content) != 8 * sum(sizes):
        raise StateError(
            f"expected the states of metrics, received {len(content)} bytes for "
            f"{description[:80]!r}"
        )
    return State(fields, content)


def merge(states: Sequence[State]) -> State:
    """Puts the states of several workers together.

    Args:
      states: of the same variables, in the order of ranks; at least one.

    Raises:
      StateError: they are of different variables.
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
    return State(first.fields, b"".join(merged))
