"""The needs of a worker with each stage of `Sharding`."""

from __future__ import annotations

from tfdist.plan import memory
from tfdist.plan.memory import ModelMemory

GB = 10**9
ADAM = ModelMemory(weights=4 * GB, slots=8 * GB, layers=1 * GB, rest=1 * GB)


def test_needs_are_those_of_the_page():
    copies, slots, everything = memory.needs(ADAM, 4)
    assert (copies.stage, copies.total) == (0, 17 * GB)
    assert (slots.stage, slots.slots, slots.total) == (1, 2 * GB, 11 * GB)
    assert (everything.stage, everything.weights, everything.gradients) == (3, 2 * GB, 1 * GB)
    assert everything.total == 6 * GB


def test_the_first_that_fits_is_named():
    verdicts = {
        17 * GB: "Memory: in 17.00 GB a worker fits without sharding.",
        11 * GB: "Memory: in 11.00 GB a worker fits Sharding(stage=1).",
        6 * GB: "Memory: in 6.00 GB a worker fits Sharding(stage=3).",
        6 * GB - 1: "Memory: nothing fits into 6.00 GB with 4 workers.",
    }
    for limit, verdict in verdicts.items():
        lines = memory.table(ADAM, 4, limit)
        assert lines[-1] == verdict
        assert len(lines) == 5


def test_parts_are_rounded_up():
    assert memory.needs(ModelMemory(7, 15, 3, 0), 2)[2] == memory.Need(3, 4 + 3, 8, 4, 19)
