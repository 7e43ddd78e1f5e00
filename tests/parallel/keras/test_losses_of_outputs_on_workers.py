"""`evaluate` on several workers logs the loss of each output as one process does."""

from __future__ import annotations

import output_losses
import pytest
from ranks import on_ranks

import tfdist


@on_ranks(2)
def test_losses_of_outputs(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    for losses in output_losses.LOSSES:
        expected = output_losses.logs(None, losses)
        assert output_losses.logs(strategy, losses) == pytest.approx(expected, rel=1e-5)
