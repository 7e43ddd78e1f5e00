"""`fit` with parameter servers on SIGTERM: the last snapshot has all workers' updates."""

from __future__ import annotations

import random
import signal
import time

import pytest

from support import tiers
from support.processes.ranks import start_ranks
from support.ps_job import roles
from tfdist.ps.checkpoint import snapshot

pytestmark = pytest.mark.timeout(240)


def fit(ctx, mode):
    """Trains until it is told to end; the servers' count of steps is the test's."""
    import keras
    import numpy as np

    import tfdist

    strategy = tfdist.ParameterServerStrategy(mode=mode, checkpoint_dir=str(ctx.tmp_path))
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        model.compile(optimizer="sgd", loss="mse")

    class Steps(keras.callbacks.Callback):
        count = 0

        def on_train_batch_end(self, batch, logs=None):
            self.count += 1
            ctx.report("step", self.count)
            time.sleep(0.002)

    steps = Steps()
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    try:
        model.fit(x, x.sum(axis=1), batch_size=8, epochs=1000, verbose=0, callbacks=[steps])
    finally:
        ctx.report("steps in all", steps.count)


def steps_saved(root):
    shards = snapshot.read_latest(snapshot.directory(str(root), 0, 1)).shards
    (iterations,) = (v for name, v in shards.items() if name.endswith("iteration"))
    return int(iterations[0])


@pytest.mark.long("async-all", "sync-worker", covered_by="the other cases")
@pytest.mark.parametrize("who", ["worker", "all"])
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_what_was_trained_is_saved(tmp_path, mode, who):
    draw = random.Random(1)
    for turn in range(tiers.rounds(1, 10)):
        folder = tmp_path / str(turn)
        folder.mkdir()
        with start_ranks(fit, 3, kwargs={"mode": mode}, roles=roles(2), tmp_path=folder) as ranks:
            for rank in (0, 1):
                ranks.wait_for(rank, "step", draw.randint(3, 20))
            for rank in [1] if who == "worker" else draw.sample([0, 1, 2], 3):
                ranks[rank].send_signal(signal.SIGTERM)
            outcomes = ranks.join(60)
            made = [ranks.wait_for(rank, "steps in all") for rank in (0, 1)]
        for outcome in outcomes:
            assert outcome.exit_code == 143, outcome.describe()
        assert outcomes[0].exception == outcomes[1].exception == "Preempted"
        for outcome in outcomes[:2]:
            assert f"the parameter servers save to {folder}" in outcome.output, outcome.describe()
        if mode == "sync":
            assert made[0] == made[1] == steps_saved(folder)
        else:
            assert sum(made) == steps_saved(folder)


def loop_forever(ctx):
    """Workers without a handler, whom SIGTERM ends at once."""
    import tfdist

    tfdist.ParameterServerStrategy(checkpoint_dir=str(ctx.tmp_path))
    ctx.report("step", 1)
    time.sleep(60)


def test_a_server_does_not_wait_for_workers_that_are_gone(tmp_path):
    with start_ranks(loop_forever, 3, roles=roles(2), tmp_path=tmp_path) as ranks:
        for rank in (0, 1):
            ranks.wait_for(rank, "step", 1)
        for rank in (2, 1, 0):
            ranks[rank].send_signal(signal.SIGTERM)
        chief, worker, server = ranks.join(30)
    assert chief.signal == worker.signal == signal.SIGTERM
    assert server.exit_code == 143, server.describe()
