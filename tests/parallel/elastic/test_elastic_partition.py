"""A network that parts: one of three hosts is cut off, the others continue, and it joins again."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import start_ranks

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from baselines import namespaces

pytestmark = pytest.mark.long(
    covered_by="single/elastic/test_membership_partition.py, single/elastic/test_membership.py"
)

ROWS, BATCH, EPOCHS = 160, 16, 80
CUT_OFF = 2


class Report(keras.callbacks.Callback):
    """Reports each step with the number of members, and makes the training last for a while."""

    def __init__(self, ctx, job) -> None:
        super().__init__()
        self._ctx, self._job = ctx, job

    def on_train_batch_end(self, batch, logs=None):
        self._ctx.report("members", self._job.size)
        time.sleep(0.03)


def fit(scope, callbacks=()):
    keras.utils.set_random_seed(4)
    with scope:
        model = keras.Sequential(
            [keras.Input((5,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)]
        )
        model.compile(keras.optimizers.Adam(0.01), "mse")
    x = np.random.default_rng(3).normal(size=(ROWS, 5))
    model.fit(
        *(x, np.tanh(x.sum(axis=1, keepdims=True))),
        batch_size=BATCH,
        epochs=EPOCHS,
        verbose=0,
        callbacks=list(callbacks),
    )
    return model.get_weights()


def train(ctx, hosts, addresses):
    namespaces.inside(hosts[ctx.rank], lambda: None)
    workers = [f"{address}:7000" for address in addresses]
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": ctx.rank}}
    )
    keras.backend.set_floatx("float64")
    strategy = tfdist.MultiWorkerMirroredStrategy()
    weights = fit(strategy.scope(), [Report(ctx, strategy.elastic_job)])
    return weights, fit(tf.distribute.get_strategy().scope()) if ctx.rank == 0 else None


@pytest.mark.timeout(200)
def test_the_majority_goes_on_and_the_others_join_it_again():
    try:
        network = namespaces.Network(3, gigabits=1)
    except namespaces.NotPermitted as error:
        pytest.skip(f"network namespaces cannot be made here: {error}")
    env = {"TFDIST_ELASTIC": "1:3", "TFDIST_SECRET": "a secret of the three hosts"}
    with contextlib.closing(network):
        arguments = [network.hosts, network.addresses]
        with start_ranks(train, 3, args=arguments, env=env) as ranks:
            ranks.wait_for(0, "members", 3, timeout=60)
            network.set_link(CUT_OFF, "down")
            for rank in (0, 1):
                ranks.wait_for(rank, "members", 2, timeout=40)
            steps_alone = len(ranks[CUT_OFF].reports)
            network.set_link(CUT_OFF, "up")
            outcomes = ranks.join(timeout=90)
            after = ranks[CUT_OFF].reports[steps_alone:]
    assert all(outcome.ok for outcome in outcomes), "\n".join(o.describe() for o in outcomes)
    # Cut off, it made no step; afterwards it was one of three again.
    assert {members for _, members in after} == {3}
    expected = outcomes[0].result[1]
    for outcome in outcomes:
        for own, other in zip(outcome.result[0], expected, strict=True):
            np.testing.assert_allclose(own, other, rtol=0, atol=1e-10)
