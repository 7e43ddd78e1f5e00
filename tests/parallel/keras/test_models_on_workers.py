"""Models of many kinds on two workers come to one process's results with the same batches."""

from __future__ import annotations

import functools

import pytest

import tfdist
from support.processes.ranks import on_ranks
from support.ps_job import meet, on_job, served
from support.tiers import chosen
from support.training import parity_models
from support.training.models import identical

# test_models_on_devices.py has the others.
CASES = chosen(parity_models.CASES, "GAN")


def like_alone(strategy, results):
    """A `check`: all workers have the same results, equal to one process's."""
    results = [result for result in results if result is not None]
    for name in CASES:
        of_workers = [result[name] for result in results]
        identical([[*one.weights, *one.slots, *one.history.values()] for one in of_workers])
        parity_models.assert_like_alone(strategy, name, CASES[name], of_workers[0])


# One job trains all of them: to start one takes longer than to train a model.
@pytest.mark.timeout(180)
@on_ranks(2, timeout=150.0, check=functools.partial(like_alone, "MultiWorkerMirroredStrategy"))
def test_all_reduce(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    return {name: parity_models.train(case, strategy) for name, case in CASES.items()}


@pytest.mark.long(covered_by="test_all_reduce, parallel/ps/test_ps_sync.py")
@pytest.mark.timeout(180)
@on_job(2, timeout=150.0, check=functools.partial(like_alone, "ParameterServerStrategy, sync"))
def test_sync(ctx):
    if served():
        return None
    strategy = tfdist.ParameterServerStrategy(mode="sync")
    return {
        # Only the chief's weights reach the servers, and no step may come before them.
        name: parity_models.train(case, strategy, functools.partial(meet, ctx, name))
        for name, case in CASES.items()
    }
