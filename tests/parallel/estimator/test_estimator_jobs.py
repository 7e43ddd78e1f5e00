"""train_and_evaluate with a chief, a worker and an evaluator, started by `tfdist run`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from parallel.estimator.estimator_job import train_and_evaluate
from parallel.estimator.plain_tensorflow import serve
from support.estimator import estimators
from support.launching import PACKAGE
from support.processes.rank_outcome import describe_all
from support.processes.ranks import start_ranks
from support.ps_job import served
from support.training.models import difference, examples
from support.warm_python import interpreter

SCRIPT = Path(__file__).parent / "estimator_job.py"
pytestmark = pytest.mark.timeout(180)


def run(directory, kind, *arguments, ps=1):
    """Runs the job; returns the steps of each task that trained, and what all tasks printed."""
    tasks = ["--workers", "2", *(["--ps", str(ps)] if ps else []), "--evaluator"]
    finished = subprocess.run(
        [interpreter(), "-m", "tfdist", "run", *tasks, str(SCRIPT), str(directory), kind]
        + list(map(str, arguments)),
        env=dict(
            os.environ,
            PYTHONPATH=os.pathsep.join([PACKAGE, *sys.path]),
            TF_CPP_MIN_LOG_LEVEL="3",
        ),
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-3000:]
    results = [
        json.loads(line.partition("] ")[2]) for line in finished.stdout.splitlines() if "{" in line
    ]
    return {result["task"]: result["steps"] for result in results}


def summaries(file):
    """Returns the steps of each tag in an event file."""
    steps = {}
    for event in tf.compat.v1.train.summary_iterator(str(file)):
        for value in event.summary.value:
            steps.setdefault(value.tag, []).append(event.step)
    return steps


def check(directory, last_step):
    """Asserts what the job has left in its model_dir."""
    values = estimators.saved(directory)
    assert values["global_step"] == last_step
    (of_chief,) = directory.glob("events.out*")
    assert "loss" in summaries(of_chief)
    (of_evaluator,) = (directory / "eval").glob("events.out*")
    evaluated = summaries(of_evaluator)["accuracy"]
    assert evaluated[-1] == last_step
    assert set(evaluated) <= set(estimators.checkpoints(directory))
    features = examples(5)[0]
    hidden = tf.tanh(features @ values["layers/first"] + values["layers/bias"])
    exporters = ("final", "latest", "best")
    answers = serve([directory / "export" / exporter for exporter in exporters], {"x": features})
    for exporter, answer in zip(exporters, answers, strict=True):
        logits = answer["logits"]
        assert logits.shape == (5, 3)
        if exporter != "best":
            assert difference([logits], [hidden @ values["layers/second"]]) <= 1e-5
    assert len(list((directory / "export" / "final").iterdir())) == 1


def test_all_reduce(tmp_path):
    """Until the input ends; the evaluator learns that from the chief."""
    steps = run(tmp_path / "model", "all_reduce", "--batches", 33, 37, ps=0)
    assert steps == {"chief 0": 33, "worker 0": 33, "evaluator 0": 0}
    check(tmp_path / "model", 33)


@pytest.mark.long(
    covered_by=(
        "test_all_reduce, parallel/estimator/test_estimator_parity.py::test_async_with_one_worker"
    )
)
def test_async(tmp_path):
    """`max_steps` count the steps of all workers together."""
    steps = run(tmp_path / "model", "async", "--max-steps", 40)
    last_step = steps["chief 0"] + steps["worker 0"]
    assert 40 <= last_step <= 41 and steps["evaluator 0"] == 0
    check(tmp_path / "model", last_step)


@pytest.mark.long(covered_by="test_all_reduce")
def test_no_strategy(tmp_path):
    """TensorFlow's own between-graph training, with its own servers."""
    steps = run(tmp_path / "model", "none", "--max-steps", 40)
    assert 40 <= steps["chief 0"] + steps["worker 0"] <= 41 and steps["evaluator 0"] == 0
    # The chief saves without waiting for a last step of the worker.
    last_step = estimators.saved(tmp_path / "model")["global_step"]
    assert 40 <= last_step <= 41
    check(tmp_path / "model", last_step)


def in_sync(ctx, directory):
    return None if served() else train_and_evaluate(directory, "sync", None, [33, 37], throttle=60)


@pytest.mark.long(
    covered_by="test_all_reduce, parallel/estimator/test_estimator_parity.py::test_sync"
)
def test_sync(tmp_path):
    """The evaluator, which would wait for a minute, ends at once with the training."""
    directory = tmp_path / "model"
    roles = ("chief", "worker", "ps", "evaluator")
    with start_ranks(in_sync, 4, args=[directory], roles=roles) as ranks:
        outcomes = ranks.join(timeout=50)
    assert all(outcome.ok for outcome in outcomes), describe_all(outcomes)
    assert [o.result and o.result["steps"] for o in outcomes] == [33, 33, None, 0]
    check(directory, 33)
