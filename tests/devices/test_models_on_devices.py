"""Models of many kinds on two devices equal one process with the same batches."""

from __future__ import annotations

import pytest

import tfdist
from devices.replicas import make_strategy
from support.training import parity_models
from support.training.parity_models import CASES

STRATEGIES = {
    "OneDeviceStrategy": lambda: tfdist.OneDeviceStrategy("CPU:1"),
    "MirroredStrategy": lambda: make_strategy("mirrored", 2),
    "CentralStorageStrategy": lambda: make_strategy("central", 2),
}


# One device acts as no strategy; both strategies of several devices reduce with the same code.
@pytest.mark.long(
    "MirroredStrategy-transformer",
    "MirroredStrategy-weighted outputs",
    "CentralStorageStrategy-*",
    "OneDeviceStrategy-*",
    covered_by="the other cases",
)
@pytest.mark.long(
    "OneDeviceStrategy-*",
    "CentralStorageStrategy-*",
    usual=("*-GAN", "*-synchronized BatchNormalization"),
    covered_by="the other cases",
)
@pytest.mark.long(
    "MirroredStrategy-GRU",
    "MirroredStrategy-VAE",
    "MirroredStrategy-WGAN-GP",
    "MirroredStrategy-two views",
    covered_by="the other cases",
)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_parity(strategy, name):
    found = parity_models.train(CASES[name], STRATEGIES[strategy]())
    parity_models.assert_like_alone(strategy, name, CASES[name], found)
