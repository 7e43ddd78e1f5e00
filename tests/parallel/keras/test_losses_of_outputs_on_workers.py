"""`evaluate` on several workers logs the loss of each output as one process does."""

from __future__ import annotations

import pytest

import tfdist
from support.processes.ranks import on_ranks
from support.training import output_losses


@pytest.mark.long(covered_by="devices/test_losses_of_outputs.py")
@on_ranks(2)
def test_losses_of_outputs(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    for losses in output_losses.LOSSES:
        logged = output_losses.logs(strategy, losses)
        assert logged == pytest.approx(output_losses.expected(losses), rel=1e-5)
