"""KerasTuner's searches on several workers with one directory equal one process's."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import pytest

import tfdist
from support.processes.ranks import on_ranks, start_ranks
from support.ps_job import on_job, served
from support.training import searches
from tfdist.errors import TfdistError

pytest.importorskip("keras_tuner")
pytestmark = pytest.mark.timeout(600)

TIMEOUT = 240.0


def search_alone(ctx, kind, options):
    """Searches in one process, without a strategy."""
    tuner = searches.start(ctx.tmp_path, kind=kind, **options)
    tuner.search(**searches.data())
    (best,) = tuner.get_best_models(1)
    return searches.results(tuner), [w.tolist() for w in best.get_weights()]


def search_together(ctx, kind, options):
    """Searches as one of several workers."""
    strategy = tfdist.MultiWorkerMirroredStrategy()
    tuner = searches.start(ctx.tmp_path, strategy, kind, **options)
    tuner.search(**searches.data())
    (best,) = tuner.get_best_models(1)
    return searches.results(tuner), [w.tolist() for w in best.get_weights()]


def run(body, size, folder, *args):
    folder.mkdir(exist_ok=True)
    with start_ranks(body, size, args=args, tmp_path=folder) as ranks:
        outcomes = ranks.join(TIMEOUT)
    assert all(o.ok for o in outcomes), "\n".join(o.describe() for o in outcomes)
    return [outcome.result for outcome in outcomes]


@pytest.mark.long("Hyperband", covered_by="the other cases, parallel/elastic/test_elastic_tuner.py")
@pytest.mark.parametrize("kind", ["RandomSearch", "Hyperband"])
def test_a_search_is_that_of_one_process(tmp_path, kind):
    (alone,) = run(search_alone, 1, tmp_path / "alone", kind, {})
    together = run(search_together, 2, tmp_path / "together", kind, {})
    for result in together:
        searches.assert_close(result, alone)
    assert together[0] == together[1]
    searches.assert_close(searches.files(tmp_path / "together"), searches.files(tmp_path / "alone"))


def of_numbers(run_trial, directory, kind="RandomSearch", **options):
    """Makes a tuner whose trials train nothing."""
    kt = searches.tuner_package()

    class Tuner(getattr(kt, kind)):
        def run_trial(self, trial, **kwargs):
            return run_trial(trial.hyperparameters)

    return Tuner(directory=str(directory), project_name="p", **options)


def search_numbers(ctx):
    """Searches with each oracle, and continues with its results."""
    if ctx.size > 1:
        tfdist.MultiWorkerMirroredStrategy()
    found = {}
    for kind in ("RandomSearch", "GridSearch", "BayesianOptimization"):
        for trials in (4, 6):
            tuner = of_numbers(
                lambda hp: abs(hp.Float("x", 0.0, 1.0, step=0.1) - 0.3) + hp.Int("n", 1, 3),
                ctx.tmp_path / kind,
                kind,
                max_trials=trials,
                seed=4,
            )
            tuner.search()
        found[kind] = searches.results(tuner)
    return found


def test_each_oracle_decides_as_in_one_process(tmp_path):
    (alone,) = run(search_numbers, 1, tmp_path / "alone")
    assert run(search_numbers, 2, tmp_path / "together") == [alone, alone]
    assert searches.files(tmp_path / "together") == searches.files(tmp_path / "alone")


@on_ranks(2)
def test_what_workers_would_draw_and_measure_is_of_rank_0(ctx, tmp_path):
    tfdist.MultiWorkerMirroredStrategy()
    random.seed(ctx.rank)
    tuner = of_numbers(lambda hp: hp.Float("x", 0.0, 1.0) + ctx.rank, tmp_path, max_trials=3)
    tuner.search()
    assert tuner.oracle.seed == random.Random(0).randint(1, 10000)
    assert all(values["x"] == score for _, values, _, score in searches.results(tuner))


@on_ranks(2)
def test_an_error_of_the_job_is_no_failed_trial(ctx, tmp_path):
    tfdist.MultiWorkerMirroredStrategy()
    errors = [ValueError("a bad model"), TfdistError("a lost worker")]

    def run_trial(hp):
        hp.Float("x", 0.0, 1.0)
        raise errors.pop(0)

    tuner = of_numbers(run_trial, tmp_path, max_trials=5, seed=1)
    with pytest.raises(TfdistError, match="a lost worker"):
        tuner.search()
    assert [status for _, _, status, _ in searches.results(tuner)] == ["FAILED", "RUNNING"]


@on_ranks(2)
def test_a_directory_of_each_worker_is_refused(ctx, tmp_path):
    tfdist.MultiWorkerMirroredStrategy()
    if ctx.rank == 0:
        of_numbers(None, tmp_path / "0", seed=1)
        return
    with pytest.raises(TfdistError, match=r"worker 1: expected the same search .* 'directory'"):
        of_numbers(None, tmp_path / "1", seed=1)


@on_ranks(2)
def test_files_of_another_search_are_refused(ctx, tmp_path):
    folder = tmp_path / f"host {ctx.rank}"
    (folder / "p").mkdir(parents=True)
    (folder / "p" / "tuner0.json").write_text("{}" if ctx.rank else "{ }")
    os.chdir(folder)
    tfdist.MultiWorkerMirroredStrategy()
    if ctx.rank == 1:
        with pytest.raises(TfdistError, match=r"'file tuner0\.json' differs"):
            of_numbers(None, ".", seed=1)
    else:
        with pytest.raises(FileNotFoundError, match=r"oracle\.json"):
            of_numbers(None, ".", seed=1)


@on_ranks(2)
def test_a_parallel_search_of_kerastuner_is_refused(ctx, tmp_path):
    os.environ |= {
        "KERASTUNER_ORACLE_IP": "127.0.0.1",
        "KERASTUNER_ORACLE_PORT": "1",
        "KERASTUNER_TUNER_ID": f"tuner{ctx.rank}",
    }
    tfdist.MultiWorkerMirroredStrategy()
    with pytest.raises(ValueError, match="expected no KERASTUNER_ORACLE_IP"):
        of_numbers(None, tmp_path, seed=1)


@on_job(2)
def test_workers_of_parameter_servers_are_refused(ctx, tmp_path):
    if served():
        return
    strategy = tfdist.ParameterServerStrategy()
    searches.tuner_package()
    with pytest.raises(ValueError, match="received a ParameterServerStrategy"):
        searches.start(tmp_path, strategy)


@pytest.mark.long(covered_by="test_a_search_is_that_of_one_process")
@on_ranks(2, timeout=TIMEOUT)
def test_the_program_of_the_docs(ctx, tmp_path):
    searches.tuner_package()
    os.chdir(tmp_path)
    page = (Path(__file__).parents[3] / "docs/guides/tuning.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {}
    exec(program, names)
    assert len(names["tuner"].oracle.trials) == 3
    assert names["best"].count_params() > 0
