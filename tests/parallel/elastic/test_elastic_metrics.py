"""Metrics of an elastic job: training steps alone are counted, and counters survive losses."""

from __future__ import annotations

import os
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import start_ranks
from tfdist.job import process
from tfdist.observe.metrics.collector import describe

pytestmark = pytest.mark.timeout(120)
ROWS, BATCH, EPOCHS, STEPS = 70, 16, 2, 5


class OwnStep(keras.Sequential):
    """Returns a loss that does not wait for other members, unlike the results of metrics."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        weights = self.trainable_weights
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"own": loss}


class Kill(keras.callbacks.Callback):
    """Kills this process after a batch of the second epoch: the others' next step fails."""

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if self.epoch == 1 and batch == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def metrics():
    """Returns the numbers of this task, by name and labels."""
    cluster = process.cluster("a test")
    families = describe(cluster, process.current.settings, None)
    return {(f.name, *labels): number for f in families for labels, number in f.samples}


class Watch(keras.callbacks.Callback):
    """Collects what grows."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        found = metrics()
        self.seen.append((found["tfdist_bytes_sent", "workers"], found["tfdist_steps",]))


def train_and_lose_one(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    keras.utils.set_random_seed(4)
    with strategy.scope():
        model = OwnStep([keras.Input((5,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.AdamW(0.01), "mse")
    x = np.random.default_rng(3).normal(size=(ROWS, 5))
    watch = Watch()
    callbacks = [watch, *([Kill()] if ctx.rank == 1 else [])]
    model.fit(x, x[:, :1], batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    model.evaluate(x, x[:, :1], batch_size=BATCH, verbose=0)
    assert model.predict(x, batch_size=BATCH, verbose=0).shape == (ROWS, 1)
    found = metrics()
    assert found["tfdist_world_size",] == 2 and found["tfdist_generation",] >= 2
    # The counters cover all generations, and the lost one's are kept.
    others = {key[1] for key in found if key[0] == "tfdist_wait_seconds"}
    assert others == {f"worker {rank}" for rank in range(3) if rank != ctx.rank}
    assert watch.seen == sorted(watch.seen)
    assert found["tfdist_bytes_sent", "workers"] >= watch.seen[-1][0]
    return found["tfdist_steps",], found["tfdist_samples",]


def test_training_steps_are_counted_once_and_no_others():
    env = {"TFDIST_ELASTIC": "1:3", "TFDIST_METRICS_PORT": "0"}
    with start_ranks(train_and_lose_one, 3, env=env) as ranks:
        outcomes = ranks.join(timeout=90)
    assert outcomes[1].signal == signal.SIGKILL, outcomes[1].describe()
    counted = []
    for rank in (0, 2):
        assert outcomes[rank].ok, outcomes[rank].describe()
        counted.append(outcomes[rank].result)
    assert [steps for steps, _ in counted] == [EPOCHS * STEPS] * 2
    # The lost one has trained a third of the rows of seven steps: 16, and 6 in the epoch's last.
    before = ROWS + 2 * BATCH
    lost = EPOCHS * ROWS - sum(rows for _, rows in counted)
    assert before / 3 - STEPS < lost < before / 3 + STEPS
