"""Models of many kinds on two devices equal one process with the same batches."""

from __future__ import annotations

import parity_models
import pytest
from parity_models import CASES
from replicas import make_strategy

import tfdist

STRATEGIES = {
    "OneDeviceStrategy": lambda: tfdist.OneDeviceStrategy("CPU:1"),
    "MirroredStrategy": lambda: make_strategy("mirrored", 2),
    "CentralStorageStrategy": lambda: make_strategy("central", 2),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_parity(strategy, name):
    found = parity_models.train(CASES[name], STRATEGIES[strategy]())
    parity_models.assert_like_alone(strategy, name, CASES[name], found)
