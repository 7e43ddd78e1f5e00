"""A new elastic job continues from `BackupAndRestore`, after all workers were killed."""

from __future__ import annotations

import os
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import start_ranks

pytestmark = pytest.mark.timeout(120)

ROWS, BATCH, EPOCHS = 70, 16, 3
ELASTIC = {"TFDIST_ELASTIC": "1:2"}


class Dies(keras.callbacks.Callback):
    """Kills this process in the middle of the second epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if self.epoch == 1 and batch == 3:
            os.kill(os.getpid(), signal.SIGKILL)


def fit(scope, *callbacks):
    random = np.random.default_rng(3)
    x = random.normal(size=(ROWS, 5))
    keras.utils.set_random_seed(4)
    with scope:
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.AdamW(0.02), "mse", metrics=["mae"])
    history = model.fit(
        x, x.sum(axis=1), batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=list(callbacks)
    )
    return model.get_weights(), history.history


def train(ctx, dies):
    keras.backend.set_floatx("float64")
    backup = keras.callbacks.BackupAndRestore(str(ctx.tmp_path / "backup"), save_freq=2)
    scope = tfdist.MultiWorkerMirroredStrategy().scope()
    weights, logs = fit(scope, backup, *([Dies()] if dies else []))
    expected, expected_logs = fit(tf.distribute.get_strategy().scope())
    for own, other in zip(weights, expected, strict=True):
        np.testing.assert_allclose(own, other, rtol=0, atol=1e-10)
    for name, values in expected_logs.items():
        # Of the epochs from the interrupted one on.
        np.testing.assert_allclose(logs[name], values[1:], rtol=1e-8, err_msg=name)


def test_all_workers_have_the_logs_of_the_whole_epoch(tmp_path):
    with start_ranks(train, 2, args=(True,), env=ELASTIC, tmp_path=tmp_path) as ranks:
        outcomes = ranks.join(timeout=60)
    assert [outcome.signal for outcome in outcomes] == [signal.SIGKILL] * 2, "\n".join(
        outcome.describe() for outcome in outcomes
    )
    with start_ranks(train, 2, args=(False,), env=ELASTIC, tmp_path=tmp_path) as ranks:
        outcomes = ranks.join(timeout=60)
    assert all(outcome.ok for outcome in outcomes), "\n".join(
        outcome.describe() for outcome in outcomes
    )
