"""Of two workers one is stopped: the other one is no majority, and waits as long as that lasts."""

from __future__ import annotations

import logging
import os
import signal

import keras
import numpy as np
import pytest

import tfdist
from support.elastic.elastic_training import give_up_early
from support.processes.ranks import start_ranks

pytestmark = pytest.mark.timeout(300)

ROWS, BATCH = 64, 16


class Reports(logging.Handler):
    """Reports that this worker waits for the other one."""

    def __init__(self, ctx):
        super().__init__(logging.WARNING)
        self._ctx = ctx

    def emit(self, record):
        if "expected more than half" in record.getMessage():
            self._ctx.report("waits")


def fit(scope, *callbacks):
    keras.utils.set_random_seed(4)
    x = np.random.default_rng(3).normal(size=(ROWS, 5))
    with scope:
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    data = {"x": x, "y": x.sum(axis=1), "batch_size": BATCH, "epochs": 3, "verbose": 0}
    model.fit(**data, callbacks=list(callbacks))
    return model.get_weights()


def train(ctx):
    from tfdist.elastic import membership

    give_up_early(membership)
    logging.getLogger("tfdist.elastic").addHandler(Reports(ctx))
    strategy = tfdist.MultiWorkerMirroredStrategy()
    steps = []

    def stop(batch, logs):
        steps.append(batch)
        if len(steps) == 6 and strategy.extended.elastic_job.rank == 1:
            ctx.report("stops")
            os.kill(os.getpid(), signal.SIGSTOP)

    return fit(strategy.scope(), keras.callbacks.LambdaCallback(on_train_batch_end=stop))


@pytest.mark.long("True", covered_by="the other cases")
@pytest.mark.parametrize("continues", [True, False])
def test_one_of_two_is_stopped(continues):
    env = {"TFDIST_ELASTIC": "1:2:2", "TFDIST_RENDEZVOUS_TIMEOUT": "60" if continues else "15"}
    with start_ranks(train, 2, env=env) as ranks:
        found = []

        def is_reported(key):
            found[:] = [r for r in (0, 1) if any(k == key for k, _ in ranks[r].reports)]
            return bool(found)

        ranks.wait_until(lambda: is_reported("stops"), 120, "a worker to stop")
        (stopped,) = found
        if not continues:
            ended = ranks.join(timeout=120, only=[1 - stopped])
            assert ended[0].exception == "RendezvousTimeoutError", ended[0].describe()
            assert "expected more than half of the living members" in ended[0].message
            assert "waited 15 s (TFDIST_RENDEZVOUS_TIMEOUT)" in ended[0].message
            return
        ranks.wait_for(1 - stopped, "waits", timeout=120)
        ranks[stopped].resume()
        outcomes = ranks.join(timeout=120)
    assert all(outcome.ok for outcome in outcomes), "\n".join(
        outcome.describe() for outcome in outcomes
    )
    expected = fit(tfdist.OneDeviceStrategy("CPU:0").scope())
    for outcome in outcomes:
        for own, other in zip(outcome.result, expected, strict=True):
            np.testing.assert_allclose(own, other, rtol=0, atol=2e-6)
