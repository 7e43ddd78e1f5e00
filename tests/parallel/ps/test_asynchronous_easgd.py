"""Asynchronous EASGD: each worker meets the centre, on the parameter servers, by itself."""

from __future__ import annotations

import contextlib
import os

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import on_ranks
from support.ps_job import on_job, served
from support.training import models, quadratics
from support.training.known_gradient import hear, tell
from support.training.models import EXACT, difference, identical
from tfdist.errors import ClusterConfigError
from tfdist.rules import EASGD, ModelAveraging

pytestmark = pytest.mark.timeout(120)
H, ROUNDS, ALPHA = 3, 4, 0.4
RULE = EASGD(ALPHA, asynchronous=True)


class Turns(keras.callbacks.Callback):
    """The workers make their rounds one after the other, rank 0 first."""

    def __init__(self, ctx) -> None:
        super().__init__()
        self._ctx = ctx

    def on_train_batch_begin(self, batch, logs=None):
        turn = 2 * (batch // H) + self._ctx.rank
        if batch % H == 0 and turn > 0:
            hear(self._ctx, f"turn {turn - 1}")

    def on_train_batch_end(self, batch, logs=None):
        if batch % H == H - 1:
            tell(self._ctx, f"turn {2 * (batch // H) + self._ctx.rank}")


def met(x: float, centre: float) -> tuple[float, float]:
    move = ALPHA * (x - centre)
    return x - move, centre + move


@on_job(2, check=lambda results: identical(results[:2]))
def test_workers_that_take_turns_follow_the_recurrence(ctx):
    if served():
        return None
    centre, x = 0.0, [0.0, 0.0]
    for _ in range(ROUNDS):
        for rank in (0, 1):
            x[rank], centre = met(quadratics.alone(x[rank], rank, H), centre)
    with tfdist.LocalUpdateStrategy(H, RULE).scope():
        model = quadratics.quadratic()
    model.fit(quadratics.rows(H * ROUNDS), verbose=0, callbacks=[Turns(ctx)])
    found = float(model.get_weights()[0])
    assert found == pytest.approx(centre, abs=2e-6)
    # An assigned value becomes the centre.
    model.set_weights([np.float32(7.0)])
    model.fit(quadratics.rows(1), verbose=0)
    again = float(model.get_weights()[0])
    expected = []
    for order in ((0, 1), (1, 0)):  # either may be the first to exchange
        centre = 7.0
        for rank in order:
            _, centre = met(quadratics.alone(7.0, rank, 1), centre)
        expected.append(pytest.approx(centre, abs=2e-6))
    assert again in expected
    return [found, again]


class Waits(keras.callbacks.Callback):
    """Rank 1 makes its first step when rank 0 has made its last one."""

    def __init__(self, ctx, steps) -> None:
        super().__init__()
        self._ctx, self._steps = ctx, steps

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 0 and self._ctx.rank == 1:
            hear(self._ctx, "all steps of rank 0")

    def on_train_batch_end(self, batch, logs=None):
        if batch == self._steps - 1 and self._ctx.rank == 0:
            tell(self._ctx, "all steps of rank 0")


@pytest.mark.long(covered_by="test_a_worker_goes_on_within_a_round")
@on_job(2, 2, check=lambda results: identical(results[:2]))
def test_a_slow_worker_holds_nobody_back(ctx):
    """On two servers; with a last round that an epoch's end cuts short, and moving statistics."""
    if served():
        return None
    steps = H * ROUNDS + 1
    features = np.random.default_rng(1).normal(size=(16 * steps, 6)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((features, features.sum(axis=1))).batch(16)
    keras.utils.set_random_seed(3)
    with tfdist.LocalUpdateStrategy(H, RULE).scope():
        model = keras.Sequential(
            [
                keras.Input((6,)),
                keras.layers.Dense(8, activation="tanh"),
                keras.layers.BatchNormalization(),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.Adam(0.02), "mse")
    first = model.fit(data, verbose=0, callbacks=[Waits(ctx, steps)]).history["loss"]
    later = model.fit(data, epochs=5, verbose=0).history["loss"]
    assert later[-1] < 0.8 * first[0]
    return model.get_weights()


@on_ranks(1)
def test_alone(ctx):
    """Without a cluster the worker has a server of its own."""
    del os.environ["TF_CONFIG"]
    centre = x = 0.0
    for _ in range(ROUNDS):
        for _ in range(H):
            slopes = np.multiply(quadratics.CURVATURES, x - np.array(quadratics.OPTIMA))
            x -= quadratics.RATE * np.mean(slopes)
        x, centre = met(x, centre)
    with tfdist.LocalUpdateStrategy(H, RULE).scope():
        model = quadratics.quadratic()
    model.fit(quadratics.rows(H * ROUNDS), verbose=0)
    assert float(model.get_weights()[0]) == pytest.approx(centre, abs=2e-6)


class End(keras.callbacks.Callback):
    """Interrupts `fit` after a batch of the first epoch."""

    def __init__(self, batch):
        super().__init__()
        self._batch = batch

    def on_train_batch_end(self, batch, logs=None):
        if batch == self._batch:
            raise KeyboardInterrupt


def trained_in_two_parts(folder, data, epochs):
    """A model whose `fit` stops after 8 steps, and continues from the backup of the 7th."""
    for end in ([End(7)], []):
        model = classifier()
        backup = keras.callbacks.BackupAndRestore(str(folder), save_freq=7)
        with contextlib.suppress(KeyboardInterrupt):
            model.fit(data, epochs=epochs, verbose=0, callbacks=[backup, *end])
    return model


def classifier():
    with tfdist.LocalUpdateStrategy(H, RULE).scope():
        keras.utils.set_random_seed(0)
        return models.built_classifier(keras.optimizers.SGD(0.1, momentum=0.9))


@on_ranks(1)
def test_a_worker_goes_on_within_a_round(ctx, tmp_path):
    """After two rounds and a step; with its own variables, and the centre as it was."""
    del os.environ["TF_CONFIG"]
    data = models.dataset(10 * 16, 16)
    whole = classifier()
    whole.fit(data, epochs=2, verbose=0)
    model = trained_in_two_parts(tmp_path, data, 2)
    assert difference(model.get_weights(), whole.get_weights()) <= EXACT
    assert difference(models.slots(model), models.slots(whole)) <= EXACT


@pytest.mark.long(covered_by="test_a_worker_goes_on_within_a_round")
@on_job(2, check=lambda results: identical(results[:2]))
def test_a_job_goes_on_from_its_backup(ctx, tmp_path):
    if served():
        return None
    data = models.dataset(10 * 16, 16)
    model = trained_in_two_parts(tmp_path, data, 3)
    first, last = classifier(), model
    losses = [m.evaluate(data, verbose=0, return_dict=True)["loss"] for m in (first, last)]
    assert losses[1] < 0.9 * losses[0]
    return model.get_weights()


@on_ranks(2)
def test_a_job_without_servers_is_refused(ctx):
    with pytest.raises(ClusterConfigError, match="expected ps tasks for the centre of an asynchr"):
        tfdist.LocalUpdateStrategy(H, RULE)


@on_job(1)
def test_refusals(ctx):
    if served():
        return
    with pytest.raises(ClusterConfigError, match="expected no ps tasks in the cluster"):
        tfdist.LocalUpdateStrategy(H, ModelAveraging())
    for options, message in (
        ({"compression": "bf16"}, "compression=None with an asynchronous rule, received 'bf16'"),
        ({"slots": "average"}, "slots to be 'keep' with an asynchronous rule"),
        ({"warmup_steps": 2}, "warmup_steps to be 0 with an asynchronous rule"),
    ):
        with pytest.raises(ValueError, match=message):
            tfdist.LocalUpdateStrategy(H, RULE, **options)
    tfdist.LocalUpdateStrategy(H, RULE)  # so that the server ends
