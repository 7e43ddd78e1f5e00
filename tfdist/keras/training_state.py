"""The state of a training that a checkpoint holds beside the values of the model."""

from __future__ import annotations

import dataclasses

from tfdist.data.position import InputPosition
from tfdist.keras.own_state import OwnState


@dataclasses.dataclass(frozen=True)
class TrainingState:
    """The state that a `fit` needs, besides the values of its model, to continue.

    Args:
      position: the next batch.
      own: each replica's own values, such as the states of random generators.
    """

    position: InputPosition
    own: OwnState


def rows_in(batches: int, size: int, last: int | None) -> int:
    """Returns the number of rows in some batches, of which the last one may be smaller."""
    return batches * size if last is None else (batches - 1) * size + last
