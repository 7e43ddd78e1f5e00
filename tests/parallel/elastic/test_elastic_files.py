"""Callbacks that write leave the files of one process, whoever is rank 0, and whenever it dies."""

from __future__ import annotations

import contextlib
import functools
import importlib
import signal

import pytest
import tensorflow as tf

import tfdist
from support.elastic.file_callbacks import (
    STEPS,
    Faults,
    arguments,
    check_equal,
    contents,
    model_of,
    replace_package,
)
from support.patience import PATIENCE
from support.processes.ranks import start_ranks
from tfdist import ops
from tfdist.elastic.job import Unit
from tfdist.keras.callback import Callback

pytestmark = pytest.mark.timeout(180 * PATIENCE)
LIBRARIES = ("keras", "tf_keras")
TIMEOUT = 90.0 * PATIENCE


def writing(keras, folder):
    """One callback of each kind that writes."""
    ending = ".keras" if keras.__name__ == "keras" else ".h5"
    callbacks = keras.callbacks
    return [
        callbacks.CSVLogger(str(folder / "log.csv")),
        callbacks.ModelCheckpoint(str(folder / ("epoch-{epoch}-{loss:.3f}" + ending))),
        callbacks.ModelCheckpoint(
            str(folder / "best.weights.h5"),
            monitor="val_loss",
            save_best_only=True,
            save_weights_only=True,
        ),
        callbacks.ModelCheckpoint(
            str(folder / "steps" / "{epoch}-{batch}.weights.h5"),
            save_weights_only=True,
            save_freq=3,
        ),
        callbacks.TensorBoard(str(folder / "events"), histogram_freq=1, update_freq=1),
        callbacks.BackupAndRestore(str(folder / "backup")),
    ]


def averaging(keras, folder):
    """Checkpoints of averaged weights, and of the best ones under a schedule."""
    callbacks = keras.callbacks
    return [
        callbacks.SwapEMAWeights(swap_on_epoch=True),
        callbacks.ModelCheckpoint(str(folder / "epoch-{epoch}.keras")),
        callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2),
        callbacks.EarlyStopping("loss", mode="max", patience=2, restore_best_weights=True),
    ]


FAULTS = []  # of this process


class Own(Callback):
    """Writes a file for each call, with its counts; each file may be written twice."""

    def __init__(self, folder):
        super().__init__()
        self._folder, self.epochs = folder, 0

    def _note(self, what):
        (self._folder / f"{what}.txt").write_text(f"{self.epochs}")

    def on_train_begin(self, logs=None):
        self._note(f"begin of {self.params['epochs']}")

    def on_epoch_begin(self, epoch, logs=None):
        self._note(f"epoch {epoch} begins")

    def on_train_batch_end(self, batch, logs=None):
        self._note(f"batch {batch} {logs['loss']:.3f}")

    def on_test_end(self, logs=None):
        self._note(f"test {logs['loss']:.3f}")

    def on_epoch_end(self, epoch, logs=None):
        for faults in FAULTS:
            faults.at(f"own {epoch}")
        self.epochs += 1
        self._note(f"epoch {epoch} ends")
        self.model.save_weights(str(self._folder / f"{epoch}.weights.h5"))

    def on_train_end(self, logs=None):
        for faults in FAULTS:
            faults.at("own end")
        self._note("end")


def own(keras, folder):
    """A user's own callback, and a callback that changes its saved values."""
    rate = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    return [tfdist.callbacks.OnRankZero(lambda: Own(folder)), rate]


KINDS = {
    "own": (own, {}),
    "writing": (writing, {}),
    "averaging": (averaging, {"use_ema": True, "ema_momentum": 0.5}),
}


def train(ctx, library, kind, epochs, deaths=(), waits=(), alone=False):
    keras = importlib.import_module(library)
    make, options = KINDS[kind]
    files = ctx.tmp_path / "files"
    files.mkdir(exist_ok=True)
    replace_package()
    strategy = None if alone else tfdist.MultiWorkerMirroredStrategy()
    with contextlib.nullcontext() if alone else strategy.scope():
        model = model_of(library, **options)
    callbacks = make(keras, files)
    if not alone:
        faults = Faults(ctx.tmp_path, strategy.elastic_job, deaths, waits)
        faults.around_saving(model)
        FAULTS.append(faults)
        callbacks.append(faults)
    model.fit(**arguments(epochs, validates=kind != "averaging"), callbacks=callbacks)
    if not alone:
        meet(strategy.elastic_job)
    weights = [weights.tolist() for weights in model.get_weights()]
    return (weights, contents(files)) if alone else weights


def meet(job):
    """No member ends before all have ended `fit`."""
    job.run(Unit("the end", lambda: ops.all_reduce(tf.constant(0), job.communicator, label="end")))


@functools.cache
def one_process(library, kind, epochs):
    """The weights and the files of one process."""
    with start_ranks(train, 1, args=(library, kind, epochs), kwargs={"alone": True}) as ranks:
        (outcome,) = ranks.join(TIMEOUT)
    assert outcome.ok, outcome.describe()
    return outcome.result


def survive(library, kind, epochs, tmp_path, deaths, workers=2, waits=(), restarts=0):
    """The weights and the files of an elastic job whose ranks 0 die."""
    args = (library, kind, epochs, tuple(deaths), tuple(waits))
    env = {"TFDIST_ELASTIC": f"1:{workers}", "TFDIST_RENDEZVOUS_TIMEOUT": f"{60 * PATIENCE:g}"}
    with start_ranks(train, workers, args=args, env=env, tmp_path=tmp_path) as ranks:
        for _ in range(restarts):
            ranks.wait_until(
                lambda: any(not ranks[i].alive for i in range(workers)), TIMEOUT, "a death"
            )
            (dead,) = (i for i in range(workers) if not ranks[i].alive)
            ranks.restart(dead)
        outcomes = ranks.join(TIMEOUT)
    killed = [outcome for outcome in outcomes if not outcome.ok]
    assert [outcome.signal for outcome in killed] == [signal.SIGKILL] * (len(deaths) - restarts), (
        "\n".join(outcome.describe() for outcome in outcomes)
    )
    (weights, *others) = (outcome.result for outcome in outcomes if outcome.ok)
    assert all(other == weights for other in others)
    return weights, contents(tmp_path / "files")


@pytest.mark.long("tf_keras", covered_by="the other cases")
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_newcomer_goes_on_with_the_files_and_becomes_rank_0(tmp_path, library):
    """Rank 0 dies at an epoch's end, its successor two epochs later, when a newcomer is there."""
    weights, files = survive(
        library,
        "writing",
        6,
        tmp_path,
        ["epoch end 1", "epoch end 4"],
        waits=(3,),
        restarts=1,
    )
    expected_weights, expected = one_process(library, "writing", 6)
    assert weights == expected_weights
    check_equal(files, expected)


# Both Kerases share the code.
@pytest.mark.long(
    "save of epoch 1-tf_keras",
    "saved of epoch 1-keras",
    "save of epoch 2-keras",
    covered_by="the other cases",
)
@pytest.mark.long("*-tf_keras", usual="save of epoch 1-*", covered_by="the other cases")
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    "deaths",
    [
        ["save of epoch 1"],
        ["saved of epoch 1"],
        ["save of epoch 2"],
        ["epoch end 2"],
        [f"batch end 1 {STEPS - 1}"],
    ],
    ids=lambda deaths: deaths[0],
)
def test_a_successor_makes_again_what_rank_0_had_not_ended(tmp_path, library, deaths):
    weights, files = survive(library, "writing", 3, tmp_path, deaths)
    expected_weights, expected = one_process(library, "writing", 3)
    assert weights == expected_weights
    check_equal(files, expected)


@pytest.mark.long(covered_by="test_a_successor_saves_the_weights_of_that_place")
def test_two_ranks_0_die_in_the_same_save(tmp_path):
    deaths = ["save of epoch 1", "saved of epoch 1"]
    weights, files = survive("keras", "writing", 3, tmp_path, deaths, workers=3)
    expected_weights, expected = one_process("keras", "writing", 3)
    assert weights == expected_weights
    check_equal(files, expected)


@pytest.mark.parametrize("deaths", [["save of epoch 1"], ["save of epoch 2"]], ids=lambda d: d[0])
def test_a_successor_saves_the_weights_of_that_place(tmp_path, deaths):
    """Between the save and the next step callbacks change weights and rate."""
    weights, files = survive("keras", "averaging", 4, tmp_path, deaths)
    expected_weights, expected = one_process("keras", "averaging", 4)
    assert weights == expected_weights
    check_equal(files, expected)


@pytest.mark.long("own 1-tf_keras", "saved of epoch 1-keras", covered_by="the other cases")
@pytest.mark.long("*-tf_keras", usual="own 1-*", covered_by="the other cases")
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    "deaths",
    [["own 1"], ["saved of epoch 1"], [f"batch end 1 {STEPS - 1}"], ["own end"]],
    ids=lambda deaths: deaths[0],
)
def test_a_callback_of_ones_own_is_taken_over(tmp_path, deaths, library):
    weights, files = survive(library, "own", 3, tmp_path, deaths)
    expected_weights, expected = one_process(library, "own", 3)
    assert weights == expected_weights
    check_equal(files, expected)
