"""Rank 0 is stopped while it saves, and continues when its successor has saved the same files."""

from __future__ import annotations

import importlib
import os
import pkgutil
import signal

import numpy as np
import pytest

import tfdist
from support.elastic.elastic_training import give_up_early
from support.processes.ranks import start_ranks
from support.tiers import chosen

pytestmark = pytest.mark.timeout(400)

ROWS, BATCH, EPOCHS, WORKERS = 64, 16, 4, 3
STOPS_AFTER = 1  # the number of the epoch


def stop_at(owner, name, calls):
    """Lets this process stop before one of its next calls of a function."""
    original = getattr(owner, name)
    left = [calls]

    def call(*arguments, **options):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        return original(*arguments, **options)

    setattr(owner, name, call)


def fit(library, scope, *callbacks):
    keras = importlib.import_module(library)
    keras.utils.set_random_seed(4)
    random = np.random.default_rng(3)
    x = random.normal(size=(ROWS, 5))
    with scope:
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(8), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.02), "mse")
    options = {"batch_size": BATCH, "epochs": EPOCHS, "verbose": 0, "shuffle": False}
    model.fit(x, x.sum(axis=1), callbacks=list(callbacks), **options)
    return model.get_weights()


def train(ctx, library, moment):
    from tfdist.elastic import membership

    give_up_early(membership)
    keras = importlib.import_module(library)
    strategy = tfdist.MultiWorkerMirroredStrategy()
    job = strategy.extended.elastic_job
    stops = []

    def before_saving(epoch, logs):
        if epoch == STOPS_AFTER and job.rank == 0 and job.size == WORKERS and not stops:
            stops.append(True)
            ctx.report("stops")
            stop_at(pkgutil.resolve_name(moment[0]), *moment[1:])

    def after_saving(epoch, logs):
        if epoch == STOPS_AFTER + 1 and job.rank == 0:
            ctx.report("its successor has saved")
            ctx.wait_for("go", 120)

    def go_on():
        # It meets the others after it has saved, or learns that it is no member any more.
        if stops and not stops[1:]:
            stops.append(True)
            ctx.report("continues")

    original = job.run

    def run(unit):
        go_on()
        return original(unit)

    job.run = run
    note = keras.callbacks.LambdaCallback
    saves = [
        note(on_epoch_end=before_saving),
        keras.callbacks.BackupAndRestore(str(ctx.tmp_path / "backup")),
        note(on_epoch_end=after_saving),
    ]
    if library == "keras":
        # tf_keras writes this file by itself.
        saves[2:2] = [keras.callbacks.ModelCheckpoint(str(ctx.tmp_path / "model.keras"))]
    return fit(library, strategy.scope(), *saves)


def content(folder):
    """The bytes of all files, by name, except Keras's file beside a backup."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "training_metadata.json"
    }


STATE = "tfdist.keras.state_file"
MOMENTS: dict[str, tuple] = {
    "in the backup": ("keras", STATE, "_add", 1),
    "before the backup has its name": ("keras", "os", "replace", 2),
    "in the checkpoint": ("keras", STATE, "_add", 2),
    "before the checkpoint has its name": ("keras", "os", "replace", 3),
    "in the backup of tf_keras": ("tf_keras", "tensorflow:train.Checkpoint", "write", 1),
}


# All moments of two processes are in test_atomic_files.py and test_tf_keras_backups.py.
@pytest.mark.long(
    covered_by="parallel/elastic/test_elastic_files.py::test_a_successor_saves_the_weights_of_that_place"
)
@pytest.mark.parametrize("moment", chosen(MOMENTS, "before the checkpoint has its name"))
def test_its_files_do_not_take_the_place_of_its_successors(tmp_path, moment):
    library, *place = MOMENTS[moment]
    arguments = (library, place)
    env = {"TFDIST_ELASTIC": f"1:{WORKERS}:{WORKERS}"}
    with start_ranks(train, WORKERS, args=arguments, env=env, tmp_path=tmp_path) as ranks:

        def reports(key):
            return [r for r in range(WORKERS) if any(k == key for k, _ in ranks[r].reports)]

        ranks.wait_until(lambda: reports("stops"), 120, "rank 0 to save")
        (stopped,) = reports("stops")
        ranks.wait_until(lambda: reports("its successor has saved"), 120, "its successor")
        (successor,) = reports("its successor has saved")
        assert successor != stopped
        saved = content(tmp_path)
        ranks[stopped].resume()
        ranks.wait_for(stopped, "continues", timeout=120)
        assert content(tmp_path) == saved
        assert not any(".incomplete-" in name for name in saved)
        ranks.send(successor, "go")
        # The other one may find that all is over.
        outcomes = ranks.join(timeout=120, only=[r for r in range(WORKERS) if r != stopped])
    assert all(outcome.ok for outcome in outcomes), "\n".join(
        outcome.describe() for outcome in outcomes
    )
    expected = fit(library, tfdist.OneDeviceStrategy("CPU:0").scope())
    for outcome in outcomes:
        for received, other in zip(outcome.result, expected, strict=True):
            np.testing.assert_allclose(received, other, rtol=0, atol=2e-6)
    assert not any(name.startswith("backup/") for name in content(tmp_path))
