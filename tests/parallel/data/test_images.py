"""Images of TFRecord files, decoded and augmented by the worker that trains them.

Workers end with the weights of one process: with last batches of all sizes, in a job that is killed
and continues, and in an elastic job that loses a worker and takes in another one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

import keras
import numpy as np
import pytest
from keras.callbacks import BackupAndRestore

import tfdist
from support.patience import PATIENCE
from support.processes.rank_outcome import describe_all
from support.processes.ranks import on_ranks, start_ranks
from support.training.images import image_batches, image_model, write_images
from support.training.models import slots

pytestmark = pytest.mark.timeout(240 * PATIENCE)

BATCH, EPOCHS, STEPS = 8, 3, 6
IMAGES = (STEPS - 1) * BATCH + 1
# Everything is float64 but Keras's scale of losses, 1 / replicas.
RELATIVE = {"losses": 1e-7, "evaluated": 1e-7}
EXACT = 1e-10
TIMEOUT = 60 * PATIENCE  # seconds


def fit(scope, paths, images=None, callbacks=()):
    """Trains, and returns what a script may use of it.

    Args:
      scope: of the strategy.
      paths: of the images.
      images: their number, if the data is to know it.
      callbacks: of the training.
    """
    keras.backend.set_floatx("float64")
    keras.utils.set_random_seed(2)
    with scope:
        model = image_model()
    data = image_batches(paths, BATCH, images)
    options = {"validation_data": image_batches(paths[:1], BATCH), "callbacks": list(callbacks)}
    history = model.fit(data, epochs=EPOCHS, verbose=0, **options).history
    return {
        "weights": model.get_weights(),
        # Whether the step that finds the end of data is counted is a race of Keras's.
        "momenta": slots(model)[1:],
        "losses": [history["loss"][-1], history["val_loss"][-1]],
        "evaluated": model.evaluate(data, verbose=0),
        "predicted": [model.predict(data, verbose=0)],
    }


def alone(paths, images=None):
    """The training of one process."""
    return fit(contextlib.nullcontext(), paths, images)


def assert_same(found, expected):
    """Asserts that each array differs by a small part of its size."""
    assert found.keys() == expected.keys()
    for name, values in found.items():
        for own, other in zip(values, expected[name], strict=True):
            assert np.shape(own) == np.shape(other), name
            apart, size = np.linalg.norm(np.subtract(own, other)), np.linalg.norm(other)
            most = RELATIVE.get(name, EXACT) * size
            assert apart <= most, f"{name}: expected at most {most} apart, received {apart}"


# Of three workers with one, two and five images some have none, one or two of them.
@pytest.mark.long(usual="3-ranks-1-True", covered_by="the other cases")
@pytest.mark.parametrize(("last", "is_known"), [(1, True), (2, False), (5, True)])
@on_ranks(2, 3)
def test_a_last_batch(ctx, tmp_path, last, is_known):
    images = 2 * BATCH + last
    written = write_images(tmp_path, images) if ctx.rank == 0 else None
    strategy = tfdist.MultiWorkerMirroredStrategy()
    paths = tfdist.broadcast_object(written)
    known = images if is_known else None
    found = fit(strategy.scope(), paths, known)
    if ctx.rank == 0:
        assert_same(found, alone(paths, known))


class Kill(keras.callbacks.Callback):
    """Kills this process after a number of steps."""

    def __init__(self, steps):
        super().__init__()
        self._left = steps

    def on_train_batch_end(self, batch, logs=None):
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)


def train(ctx, folder, paths, images, kill=None):
    """Trains with backups; `kill` is the rank that dies, and the number of its last step."""
    strategy = tfdist.MultiWorkerMirroredStrategy()
    callbacks = [BackupAndRestore(str(folder / "backup"), save_freq=4)]
    if kill is not None and kill[0] == ctx.rank:
        callbacks.append(Kill(kill[1]))
    return fit(strategy.scope(), paths, images, callbacks)


def reference(ctx, paths, images):
    return alone(paths, images)


def run(body, workers, *args):
    """Runs a job to its end or its death; returns the results of its workers, `None` if it died."""
    with start_ranks(body, workers, args=args) as ranks:
        outcomes = ranks.join(TIMEOUT)
    if any(outcome.signal == signal.SIGKILL for outcome in outcomes):
        return None
    assert all(outcome.ok for outcome in outcomes), describe_all(outcomes)
    return [outcome.result for outcome in outcomes]


@pytest.mark.long("chief_of_more", covered_by="the other cases")
@pytest.mark.parametrize(
    ("workers", "killed", "images"),
    [((2, 2), 1, IMAGES), ((3, 2), 0, None)],
    ids=["worker", "chief_of_more"],
)
def test_a_job_that_is_killed_in_an_epoch_continues(tmp_path, workers, killed, images):
    paths = write_images(tmp_path, IMAGES)
    # The backup is of the second batch of the second epoch.
    assert run(train, workers[0], tmp_path, paths, images, (killed, STEPS + 3)) is None
    assert (tmp_path / "backup").is_dir()
    found = run(train, workers[1], tmp_path, paths, images)
    (expected,) = run(reference, 1, paths, images)
    for result in found:
        assert_same(result, expected)


class Places(keras.callbacks.Callback):
    """The victim waits for its death in a step; the other one for a newcomer, an epoch later."""

    def __init__(self, ctx, job, victim):
        super().__init__()
        self._ctx, self._job, self._victim, self._epoch = ctx, job, victim, 0

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        at = self._epoch, batch
        if at == (0, 3) and self._ctx.rank == self._victim:
            self._ctx.report("is in its step")
            self._ctx.wait_for("its death", TIMEOUT)
        if at == (1, 2) and self._ctx.rank == 1 - self._victim:
            self._ctx.report("is alone", self._job.size)
            end = time.monotonic() + TIMEOUT
            while not self._job._membership.newcomers_wait():
                assert time.monotonic() < end
                time.sleep(0.05)


def train_elastic(ctx, paths, images, victim):
    if ctx.rank == 2:
        ctx.wait_for("go", TIMEOUT)
    strategy = tfdist.MultiWorkerMirroredStrategy()
    job = strategy.extended.elastic_job
    found = fit(strategy.scope(), paths, images, [Places(ctx, job, victim)])
    return found, job.size


@pytest.mark.long("first_of_all", covered_by="the other cases")
@pytest.mark.parametrize(
    ("victim", "images"), [(1, None), (0, IMAGES)], ids=["worker", "first_of_all"]
)
def test_an_elastic_job_loses_a_worker_and_takes_in_another(tmp_path, victim, images):
    paths = write_images(tmp_path, IMAGES)
    arguments = {"args": (paths, images, victim), "env": {"TFDIST_ELASTIC": "1:3:2"}}
    with start_ranks(train_elastic, 3, **arguments) as ranks:
        ranks.wait_for(victim, "is in its step", timeout=TIMEOUT)
        ranks[victim].kill()
        ranks.wait_for(1 - victim, "is alone", 1, timeout=TIMEOUT)
        ranks.send(2, "go")
        outcomes = ranks.join(2 * TIMEOUT)
    living = [outcome for rank, outcome in enumerate(outcomes) if rank != victim]
    assert all(outcome.ok for outcome in living), describe_all(living)
    (expected,) = run(reference, 1, paths, images)
    for outcome in living:
        found, size = outcome.result
        assert size == 2
        assert_same(found, expected)
