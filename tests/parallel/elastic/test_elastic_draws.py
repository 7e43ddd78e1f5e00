"""Newcomers of an elastic `fit` read what the members read, whatever its shuffles have drawn."""

from __future__ import annotations

import importlib
import time

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.rank_outcome import describe_all
from support.processes.ranks import start_ranks

pytestmark = pytest.mark.timeout(300)
ROWS, BATCH, EPOCHS = 40, 4, 3
PATIENCE = 120.0  # seconds


def _data(kind):
    numbers = np.arange(ROWS, dtype="float32")
    # The order decides the end: each row wants another weight.
    rows = tf.data.Dataset.from_tensor_slices((np.ones((ROWS, 1), "float32"), numbers / ROWS))
    rows = rows.shuffle(ROWS, seed=5)
    if kind == "nested":
        rows = rows.shuffle(9, seed=6)
    train, test = rows.take(24), rows.skip(24)
    return {"x": train.batch(BATCH), "validation_data": test.batch(BATCH), "validation_steps": 3}


def _model(library):
    own = importlib.import_module(library)
    own.utils.set_random_seed(1)
    layers = [own.Input((1,)), own.layers.Dense(1, use_bias=False)]
    model = own.Sequential(layers)
    model.compile(own.optimizers.SGD(0.2, momentum=0.5), "mse")
    return own, model


def _train(library, kind, strategy, *callbacks):
    if strategy is None:
        own, model = _model(library)
    else:
        with strategy.scope():
            own, model = _model(library)
    data = _data(kind)
    made = [type("Own", (base, own.callbacks.Callback), {})(*args) for base, *args in callbacks]
    history = model.fit(**data, epochs=EPOCHS, verbose=0, callbacks=made).history
    return model.get_weights()[0], history["val_loss"]


class _Until:
    """Makes rank 0 stay in a step until a newcomer waits for the members."""

    def __init__(self, ctx, job, at):
        super().__init__()
        self._ctx, self._job, self._at, self._epoch = ctx, job, at, 0

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if self._ctx.rank or (self._epoch, batch) != self._at:
            return
        self._ctx.report("is there")
        end = time.monotonic() + PATIENCE
        while not self._job._membership.newcomers_wait():
            assert time.monotonic() < end
            time.sleep(0.05)


def _work(ctx, library, kind, at):
    if ctx.rank == 2:
        ctx.wait_for("go", PATIENCE)
    strategy = tfdist.MultiWorkerMirroredStrategy()
    job = strategy.extended.elastic_job
    weights, losses = _train(library, kind, strategy, (_Until, ctx, job, at))
    return weights, losses, job.size


def _alone(ctx, library, kind):
    return _train(library, kind, None)


@pytest.mark.long(
    "tf_keras-branches-at_its_end",
    "keras-nested-*",
    "keras-branches-at_its_end",
    covered_by="the other cases",
)
@pytest.mark.parametrize("at", [(1, 2), (1, 5)], ids=["within_an_epoch", "at_its_end"])
@pytest.mark.parametrize(
    ("library", "kind"), [("keras", "branches"), ("keras", "nested"), ("tf_keras", "branches")]
)
def test_branches_of_one_shuffle(library, kind, at):
    with (
        start_ranks(_work, 3, args=(library, kind, at), env={"TFDIST_ELASTIC": "1:3:2"}) as ranks,
        start_ranks(_alone, 1, args=(library, kind)) as alone,
    ):
        ranks.wait_for(0, "is there", timeout=PATIENCE)
        ranks.send(2, "go")
        outcomes = ranks.join(PATIENCE)
        (reference,) = alone.join(PATIENCE)
    everyone = [*outcomes, reference]
    assert all(outcome.ok for outcome in everyone), describe_all(everyone)
    expected, losses = reference.result
    for outcome in outcomes:
        weights, own_losses, size = outcome.result
        assert size == 3
        np.testing.assert_allclose(weights, expected, rtol=1e-5)
        np.testing.assert_allclose(own_losses, losses, rtol=1e-5)
