"""`evaluate` logs the loss of each output as one process does, with uneven batches."""

from __future__ import annotations

import pytest

from devices.replicas import make_strategy
from support.training import output_losses


@pytest.mark.long("mirrored-one for all", "central-of each output", covered_by="the other cases")
@pytest.mark.parametrize("losses", output_losses.LOSSES)
@pytest.mark.parametrize("kind", ["central", "mirrored"])
def test_losses_of_outputs(kind, losses):
    expected = output_losses.expected(losses)
    assert len(expected) == 3
    found = output_losses.logs(make_strategy(kind, 2), losses)
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", ["central", "mirrored"])
def test_one_batch_that_does_not_divide(kind):
    # Keras 3.16 knows how many rows it has, and so how many each replica has.
    expected = output_losses.logs(None, "of each output", slice(7))
    found = output_losses.logs(make_strategy(kind, 2), "of each output", slice(7))
    assert found == pytest.approx(expected, rel=1e-5)
