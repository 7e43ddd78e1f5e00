"""train_and_evaluate to the end, and on from there, with values that are named by objects."""

from __future__ import annotations

import re
import shutil

import pytest

from parallel.estimator.estimator_job import train_and_evaluate
from parallel.estimator.test_estimator_jobs import run, summaries
from support.estimator import estimators
from support.estimator.estimator_data import ignore_warnings
from support.processes.rank_outcome import describe_all
from support.processes.ranks import start_ranks
from support.ps_job import served
from support.training.models import ADAPTIVE
from tfdist.config.cluster import Cluster
from tfdist.estimator.training.model_dir import end_of_training

pytestmark = [pytest.mark.timeout(240), ignore_warnings]
FIRST, LAST = 12, 20
MODELS = ["keras", "objects", "saver", "model_fn"]


def task(ctx, kind, model, max_steps):
    if Cluster.from_environment().ps and served():
        return None
    return train_and_evaluate(ctx.tmp_path / "model", kind, max_steps, model=model)


def job(folder, kind, model, max_steps):
    """Runs a job; returns the number of steps of each task that trains."""
    roles = ("chief", "worker", *(["ps"] if kind != "all_reduce" else []), "evaluator")
    folder.mkdir(exist_ok=True)
    with start_ranks(
        task, len(roles), args=(kind, model, max_steps), roles=roles, tmp_path=folder
    ) as ranks:
        outcomes = ranks.join(timeout=60, grace=10)
    assert all(outcome.ok for outcome in outcomes), describe_all(outcomes)
    *trained, evaluated = [o.result["steps"] for o in outcomes if o.result]
    assert evaluated == 0 and len(trained) == 2
    return trained


def saved_step(directory):
    """The global step, which checkpoints hold under one of several names."""
    values = estimators.saved(directory)
    names = [name for name in values if re.match(r"(estimator_)?global_step|step/", name)]
    (step,) = {int(values[name]) for name in names}
    return step


def check(directory, last_step):
    assert saved_step(directory) == estimators.checkpoints(directory)[-1] == last_step
    evaluated = [
        step
        for file in (directory / "eval").glob("events.out*")
        for step in summaries(file)["accuracy"]
    ]
    assert max(evaluated) == last_step


@pytest.mark.long(usual="sync-keras", covered_by="the other cases")
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", ["all_reduce", "sync"])
def test_in_step(kind, model, tmp_path):
    directory = tmp_path / "model"
    assert job(tmp_path, kind, model, FIRST) == [FIRST, FIRST]
    check(directory, FIRST)
    first_end = end_of_training(str(directory))
    assert first_end.global_step == FIRST
    shutil.copytree(directory, tmp_path / "alone")
    assert job(tmp_path, kind, model, LAST) == [LAST - FIRST] * 2
    check(directory, LAST)
    assert end_of_training(str(directory)) != first_end
    # One process without a strategy continues from the same checkpoint to the same values.
    alone = estimators.MODELS[model](estimators.config(tmp_path / "alone"))
    alone.train(estimators.input_fn(), max_steps=LAST)
    expected = estimators.numbers(tmp_path / "alone")
    estimators.same(estimators.numbers(directory), expected, ADAPTIVE)


@pytest.mark.long(covered_by="test_in_step, parallel/estimator/test_estimator_resume.py")
@pytest.mark.parametrize("model", MODELS)
def test_async(model, tmp_path):
    first = sum(job(tmp_path, "async", model, FIRST))
    assert FIRST <= first <= FIRST + 1
    check(tmp_path / "model", first)
    more = sum(job(tmp_path, "async", model, LAST))
    assert LAST <= first + more <= LAST + 1
    check(tmp_path / "model", first + more)


@pytest.mark.long(covered_by="test_in_step, parallel/estimator/test_estimator_resume.py")
@pytest.mark.parametrize("model", MODELS)
def test_no_strategy(model, tmp_path):
    """TensorFlow's own between-graph training, whose chief saves without waiting for the worker."""
    for first, last in ((0, FIRST), (FIRST, LAST)):
        steps = run(tmp_path / "model", "none", "--max-steps", last, "--model", model)
        assert steps["chief 0"] + steps["worker 0"] <= last - first + 1
        step = saved_step(tmp_path / "model")
        assert last <= step <= last + 1
        check(tmp_path / "model", step)
