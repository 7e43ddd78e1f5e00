"""Logs of metrics that a `train_step` returns under other names, on workers."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tfdist
from support.processes.rank_outcome import describe_all
from support.processes.ranks import on_ranks, start_ranks
from support.ps_job import meet, on_job, served
from support.training.renamed_metrics import logged


def _like_alone(results):
    for found in filter(None, results):
        for module, logs in found.items():
            expected = logged({"keras": keras, "tf_keras": tf_keras}[module], _alone())
            np.testing.assert_allclose(logs, expected, rtol=1e-5, err_msg=module)


def _alone():
    return tf.distribute.get_strategy()


def _logs(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    return {"keras": logged(keras, strategy), "tf_keras": logged(tf_keras, strategy)}


@pytest.mark.long(covered_by="test_parameter_servers, parallel/keras/test_batch_calls.py")
@on_ranks(2, timeout=150.0, check=_like_alone)
def test_workers(ctx):
    return _logs(ctx)


# The logs of fixed and of elastic workers are read by the same function.
@pytest.mark.long(covered_by="test_parameter_servers")
def test_elastic_workers():
    with start_ranks(_logs, 2, env={"TFDIST_ELASTIC": "2:2:2"}) as ranks:
        outcomes = ranks.join(150.0)
    assert all(outcome.ok for outcome in outcomes), describe_all(outcomes)
    _like_alone([outcome.result for outcome in outcomes])


@on_job(2, timeout=150.0, check=_like_alone)
def test_parameter_servers(ctx):
    if served():
        return None
    strategy = tfdist.ParameterServerStrategy(mode="sync")
    return {"keras": logged(keras, strategy, started=functools.partial(meet, ctx, "fit"))}
