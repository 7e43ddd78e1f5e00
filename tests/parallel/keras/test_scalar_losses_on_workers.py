"""Losses that return one number for a batch, or a sum, on workers and with parameter servers."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest

import tfdist
from support.processes.ranks import on_ranks, start_ranks
from support.ps_job import meet, on_job, served
from support.tiers import chosen
from support.training.models import identical
from support.training.scalar_losses import LOSSES, trained

NAMES = chosen(LOSSES, "mean", "reduction of a sum")


def _like_alone(results):
    results = [result for result in results if result is not None]
    for name in NAMES:
        of_workers = [result[name] for result in results]
        identical([[*weights, np.array(losses)] for weights, losses in of_workers])
        weights, losses = of_workers[0]
        expected, expected_losses = trained(keras, name, None)
        np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
        for one, other in zip(weights, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.long(covered_by="devices/test_scalar_losses.py")
@on_ranks(2, timeout=150.0, check=_like_alone)
def test_workers(ctx):
    return _train(ctx)


@on_job(2, timeout=150.0, check=_like_alone)
def test_parameter_servers(ctx):
    if served():
        return None
    strategy = tfdist.ParameterServerStrategy(mode="sync")
    return {
        name: trained(keras, name, strategy, functools.partial(meet, ctx, name)) for name in NAMES
    }


@pytest.mark.long(covered_by="test_parameter_servers, devices/test_scalar_losses.py")
def test_elastic_workers():
    with start_ranks(_train, 2, env={"TFDIST_ELASTIC": "2:2:2"}) as ranks:
        outcomes = ranks.join(120.0)
    assert all(outcome.ok for outcome in outcomes), "\n".join(each.describe() for each in outcomes)
    _like_alone([outcome.result for outcome in outcomes])


def _train(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    return {name: trained(keras, name, strategy) for name in NAMES}
