"""Models whose `train_step` does not call the model, on workers and with parameter servers."""

from __future__ import annotations

import functools

import pytest
import tensorflow as tf

import tfdist
from support.processes.rank_outcome import describe_all
from support.processes.ranks import on_ranks, start_ranks
from support.ps_job import meet, on_job, served
from support.tiers import chosen
from support.training import own_steps
from support.training.models import ADAPTIVE, difference, identical

NAMES = chosen(own_steps.PROGRAMS, "ragged texts")


def _like_alone(results):
    results = [result for result in results if result is not None]
    for name in NAMES:
        of_workers = [result[name] for result in results]
        identical(of_workers)
        expected = own_steps.trained(name, tf.distribute.get_strategy())
        assert difference(of_workers[0], expected) <= ADAPTIVE, name


def _train(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    return {name: own_steps.trained(name, strategy) for name in NAMES}


@on_ranks(2, timeout=150.0, check=_like_alone)
def test_workers(ctx):
    return _train(ctx)


# Elastic workers reduce with the same code.
@pytest.mark.long(covered_by="test_workers")
def test_elastic_workers():
    with start_ranks(_train, 2, env={"TFDIST_ELASTIC": "2:2:2"}) as ranks:
        outcomes = ranks.join(150.0)
    assert all(outcome.ok for outcome in outcomes), describe_all(outcomes)
    _like_alone([outcome.result for outcome in outcomes])


@pytest.mark.long(covered_by="test_workers")
@on_job(2, timeout=150.0, check=_like_alone)
def test_parameter_servers(ctx):
    if served():
        return None
    strategy = tfdist.ParameterServerStrategy(mode="sync")
    return {
        name: own_steps.trained(name, strategy, functools.partial(meet, ctx, name))
        for name in NAMES
    }
