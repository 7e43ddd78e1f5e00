"""A killed job continues after the last backup's batch, also with other workers.

A model whose weights count how often each row was seen shows that no row is lost or comes twice.
"""

from __future__ import annotations

import os
import signal

import keras
import numpy as np
import pytest
from keras.callbacks import BackupAndRestore

import tfdist
from support.processes.ranks import start_ranks
from support.training import models
from support.training.models import ADAPTIVE, EXACT, built_classifier, difference
from support.training.resuming import INPUTS
from tfdist.keras import state_file
from tfdist.keras.state_file import CompletingSaver

pytestmark = pytest.mark.timeout(240)

ROWS, BATCH = 48, 8


class Kill(keras.callbacks.Callback):
    """Kills this process after a number of steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._left = steps

    def on_train_batch_end(self, batch, logs=None) -> None:
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)


def kill_while_saving(saves: int, name: str, calls: int = 1) -> None:
    """Kills this process in one of its saves, before one of its calls of a function."""
    owner = state_file if name == "_add" else os
    save, call = CompletingSaver._replace, getattr(owner, name)
    left = [saves, calls]

    def counting_saves(*arguments):
        left[0] -= 1
        return save(*arguments)

    def counting_calls(*arguments):
        if left[0] == 0:
            left[1] -= 1
            if left[1] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments)

    CompletingSaver._replace = counting_saves
    setattr(owner, name, counting_calls)


def train(ctx, folder, optimizer, middle, kind, epochs, kill=None):
    """Trains; `kill` is the rank that dies, and the number of the step after which it does."""
    strategy = tfdist.MultiWorkerMirroredStrategy()
    keras.utils.set_random_seed(0)
    with strategy.scope():
        layers = [keras.layers.Dropout(0.3)] if middle == "dropout" else []
        made = keras.optimizers.Adam() if optimizer == "adam" else keras.optimizers.SGD(0.1)
        model = built_classifier(made, middle=layers)
    callbacks = [] if folder is None else [BackupAndRestore(str(folder / "backup"), save_freq=7)]
    if kill is not None and kill[0] == ctx.rank:
        callbacks.append(Kill(kill[1]))
    model.fit(**INPUTS[kind](), epochs=epochs, verbose=0, callbacks=callbacks)
    return [*model.get_weights(), *models.slots(model)]


def count(ctx, folder, epochs, kill=None, kill_in_save=None):
    """Trains a model of one weight per row, without any seed; returns how often it saw each row."""
    if kill_in_save is not None and ctx.rank == 0:
        kill_while_saving(*kill_in_save)
    strategy = tfdist.MultiWorkerMirroredStrategy()
    with strategy.scope():
        kernel = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = keras.Sequential([keras.Input((ROWS,)), kernel])
        # The gradient is the mean of the rows, and a step of the rate BATCH subtracts their sum.
        model.compile(keras.optimizers.SGD(float(BATCH)), lambda _, predicted: predicted)
    callbacks = [BackupAndRestore(str(folder / "backup"), save_freq=2)]
    if kill is not None and kill[0] == ctx.rank:
        callbacks.append(Kill(kill[1]))
    rows = np.eye(ROWS, dtype="float32")
    model.fit(rows, rows[:, :1], batch_size=BATCH, epochs=epochs, verbose=0, callbacks=callbacks)
    return -model.get_weights()[0][:, 0]


def life(body, workers, *args, **kwargs):
    """Runs a job to its end or its death; returns the chief's result, `None` if it died."""
    with start_ranks(body, workers, args=args, kwargs=kwargs) as ranks:
        outcomes = ranks.join(timeout=60)
    if any(outcome.signal == signal.SIGKILL for outcome in outcomes):
        return None
    assert all(outcome.ok for outcome in outcomes), "\n".join(o.describe() for o in outcomes)
    return outcomes[0].result


@pytest.mark.long("fewer_workers", covered_by="the other cases")
@pytest.mark.long("more_workers", covered_by="the other cases")
@pytest.mark.parametrize(
    ("optimizer", "middle", "kind", "workers"),
    [
        ("adam", "dropout", "arrays", (2, 2)),
        ("adam", "plain", "dataset", (2, 1)),
        ("sgd", "plain", "py_dataset", (1, 2)),
    ],
    ids=["dropout", "fewer_workers", "more_workers"],
)
def test_the_end_is_that_of_a_job_that_was_never_killed(tmp_path, optimizer, middle, kind, workers):
    before, after = workers
    arguments = (optimizer, middle, kind, 20)  # 120 steps
    expected = life(train, before, None, *arguments)
    assert life(train, before, tmp_path, *arguments, kill=(before - 1, 51)) is None
    received = life(train, after, tmp_path, *arguments)
    assert difference(received, expected) <= (ADAPTIVE if optimizer == "adam" else EXACT)


def test_each_row_counts_once_in_each_epoch(tmp_path):
    backup = tmp_path / "backup"
    assert life(count, 2, tmp_path, 4, kill=(1, 5)) is None  # 4 steps saved
    moments = [
        ("_add",),  # of Keras alone
        ("replace",),  # complete, and the former backup has a further name
        ("replace", 2),  # the former backup is kept
        ("fsync", 2),  # renamed
    ]
    for workers, moment in zip((2, 1, 2, 1), moments, strict=True):
        # The first save of each life has succeeded, and the last one of the last life.
        assert life(count, workers, tmp_path, 4, kill_in_save=(2, *moment)) is None
        assert any(path.name.startswith(".incomplete-") for path in backup.iterdir()) == (
            moment != moments[-1]
        )
    assert life(count, 2, tmp_path, 4, kill=(0, 1)) is None  # nothing
    np.testing.assert_array_equal(life(count, 2, tmp_path, 4), np.full([ROWS], 4.0))
    assert not backup.exists()
