"""The memory of a worker, without sharding and with each stage of `tfdist.Sharding`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tfdist.plan.units import show_bytes

# The values of `tfdist.Sharding(stage=)`; 0: without sharding. Stage 2 needs what stage 1 needs,
# except for accumulated gradients.
STAGES = (0, 1, 3)


@dataclasses.dataclass(frozen=True)
class ModelMemory:
    """The memory of a training in one process, in bytes.

    Attributes:
      weights: of trainable variables.
      slots: of the optimizer.
      layers: the trainable variables of the two layers that have most.
      rest: all else: TensorFlow, activations, other variables, input.
    """

    weights: int
    slots: int
    layers: int
    rest: int


@dataclasses.dataclass(frozen=True)
class Need:
    """The memory of a worker, in bytes.

    Attributes:
      stage: of `tfdist.Sharding`; 0: without sharding.
      weights: of trainable variables, with layers that are whole.
      slots: of the optimizer.
      gradients: of trainable variables.
      total: with all else.
    """

    stage: int
    weights: int
    slots: int
    gradients: int
    total: int


def needs(model: ModelMemory, workers: int) -> list[Need]:
    """The needs of one of some workers, by stage (docs/guides/large_models.md)."""
    found = []
    for stage in STAGES:
        slots = model.slots if stage == 0 else -(-model.slots // workers)
        part = -(-model.weights // workers)
        weights = part + model.layers if stage == 3 else model.weights
        gradients = part if stage == 3 else model.weights
        total = weights + slots + gradients + model.rest
        found.append(Need(stage, weights, slots, gradients, total))
    return found


def table(model: ModelMemory, workers: int, limit: int) -> list[str]:
    """The needs as lines of text, and which of them fit.

    Args:
      model: measured in one process.
      workers: their number.
      limit: bytes that a worker may use.
    """
    rows = needs(model, workers)
    lines = [f"{'memory of a worker':<22}" + "".join(f"{head:>12}" for head in _HEADS)]
    for need in rows:
        cells = (need.weights, need.slots, need.gradients, model.rest, need.total)
        lines.append(f"{_name(need):<22}" + "".join(f"{show_bytes(cell):>12}" for cell in cells))
    return [*lines, _verdict(rows, workers, limit)]


_HEADS = ("weights", "slots", "gradients", "rest", "together")


def _name(need: Need) -> str:
    return f"Sharding(stage={need.stage})" if need.stage else "without sharding"


def _verdict(rows: Sequence[Need], workers: int, limit: int) -> str:
    fitting = [need for need in rows if need.total <= limit]
    if not fitting:
        return f"Memory: nothing fits into {show_bytes(limit)} with {workers} workers."
    # The first one costs least.
    return f"Memory: in {show_bytes(limit)} a worker fits {_name(fitting[0])}."
