"""KerasTuner's searches in an elastic job that loses a worker, and gets it back."""

from __future__ import annotations

import os
import signal

import keras
import pytest

import tfdist
from support.processes.ranks import start_ranks
from support.training import searches

pytest.importorskip("keras_tuner")
pytestmark = pytest.mark.timeout(400)

TIMEOUT = 240.0
# The trial, from 0, in whose second epoch the survivor waits for the worker that was started again.
MEETING = 2


class Course(keras.callbacks.Callback):
    """Says where a worker is, lets it die, and lets it wait.

    KerasTuner copies callbacks for each trial, so the class has the state.
    """

    ctx = None
    place: tuple[int, int] | None = None
    fits = -1

    def on_train_begin(self, logs=None):
        Course.fits += 1
        Course.ctx.report("fit", Course.fits)

    def on_epoch_begin(self, epoch, logs=None):
        if (Course.fits, epoch) == (MEETING, 1) and not Course.ctx.is_new:
            Course.ctx.wait_for("go", TIMEOUT)

    def on_train_batch_end(self, batch, logs=None):
        if (Course.fits, batch) == Course.place:
            os.kill(os.getpid(), signal.SIGKILL)


def die_at_a_write(ends, count):
    """Kills this process when it has half written a file of a name for the nth time."""
    from tfdist.keras import project_files, searches

    write_whole, seen = project_files.write_whole, []

    def write_or_die(path, write):
        seen.append(path.endswith(ends))
        if sum(seen) < count:
            write_whole(path, write)
            return

        def write_and_die(new):
            write(new)
            os.truncate(new, os.path.getsize(new) // 2)
            os.kill(os.getpid(), signal.SIGKILL)

        write_whole(path, write_and_die)

    project_files.write_whole = searches.write_whole = write_or_die


def search_elastically(ctx, victim, fault, options):
    """Searches as one of several workers, one of which dies."""
    died = ctx.tmp_path.parent / "died"
    ctx.is_new = died.exists()
    Course.ctx = ctx
    if ctx.rank == victim and not ctx.is_new:
        died.touch()
        if isinstance(fault[0], int):
            Course.place = fault
        else:
            die_at_a_write(*fault)
    elif ctx.rank != victim:
        ctx.is_new = False
    strategy = tfdist.MultiWorkerMirroredStrategy()
    tuner = searches.start(ctx.tmp_path, strategy, **options)
    tuner.search(**searches.data(), callbacks=[Course()])
    (best,) = tuner.get_best_models(1)
    ctx.report("done")
    ctx.wait_for("end", TIMEOUT)
    return searches.results(tuner), [w.tolist() for w in best.get_weights()]


def search_alone(ctx, stages):
    """Searches in one process, without a strategy; each stage begins with the files of the last."""
    for options in stages:
        tuner = searches.start(ctx.tmp_path, **options)
        tuner.search(**searches.data())
    (best,) = tuner.get_best_models(1)
    return searches.results(tuner), [w.tolist() for w in best.get_weights()]


def alone(folder, *stages):
    folder.mkdir(exist_ok=True)
    with start_ranks(search_alone, 1, args=(stages,), tmp_path=folder) as ranks:
        (outcome,) = ranks.join(TIMEOUT)
    assert outcome.ok, outcome.describe()
    return outcome.result


def together(folder, victim, fault, options):
    folder.mkdir(exist_ok=True)
    env = {"TFDIST_ELASTIC": "1:2", "TFDIST_RENDEZVOUS_TIMEOUT": "60"}
    survivor = 1 - victim
    arguments = (victim, fault, options)
    with start_ranks(search_elastically, 2, args=arguments, tmp_path=folder, env=env) as ranks:
        ranks.wait_for(survivor, "fit", MEETING, timeout=TIMEOUT)
        ranks.restart(victim)
        ranks.wait_for(victim, "fit", MEETING, timeout=TIMEOUT)
        ranks.send(survivor, "go")
        for rank in range(2):
            ranks.wait_for(rank, "done", timeout=TIMEOUT)
        for rank in range(2):
            ranks.send(rank, "end")
        outcomes = ranks.join(TIMEOUT)
    assert all(o.ok for o in outcomes), "\n".join(o.describe() for o in outcomes)
    return [outcome.result for outcome in outcomes]


FAULTS = {
    "worker 1 in a step": (1, (1, 1)),
    "worker 0 in a step": (0, (1, 0)),
    # Written at the beginning of a trial, with its result, and at its end.
    "worker 0 at a trial's end": (0, ("trial_1/trial.json", 3)),
    "worker 0 in a checkpoint": (0, ("trial_1/checkpoint.weights.h5", 1)),
}


@pytest.fixture(scope="module")
def of_one_process(tmp_path_factory):
    """The result of an undisturbed search, and its files."""
    folder = tmp_path_factory.mktemp("alone")
    return alone(folder, {}), searches.files(folder)


@pytest.mark.long("worker 0 in a checkpoint", covered_by="the other cases")
@pytest.mark.long("worker ? in a step", covered_by="the other cases")
@pytest.mark.parametrize("name", FAULTS)
def test_a_search_goes_on_after_a_loss(tmp_path, of_one_process, name):
    expected, files = of_one_process
    for result in together(tmp_path / "together", *FAULTS[name], {}):
        searches.assert_close(result, expected)
    searches.assert_close(searches.files(tmp_path / "together"), files)


@pytest.mark.long(covered_by="test_a_search_goes_on_after_a_loss")
def test_a_newcomer_begins_with_the_files_of_the_founders(tmp_path):
    first, rest = {"max_trials": 1}, {"max_trials": 4, "overwrite": False}
    expected = alone(tmp_path / "alone", first, rest)
    alone(tmp_path / "together", first)
    for result in together(tmp_path / "together", 1, (0, 1), rest):
        searches.assert_close(result, expected)
    searches.assert_close(searches.files(tmp_path / "together"), searches.files(tmp_path / "alone"))
