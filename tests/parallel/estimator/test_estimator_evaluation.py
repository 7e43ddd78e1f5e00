"""Evaluating an Estimator in a job whose workers train it."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from support.estimator import estimators
from support.estimator.estimators import STRATEGIES, input_fn, saved
from support.processes.ranks import on_ranks
from support.ps_job import meet, on_job, served
from support.training.models import EXACT, difference

v1 = tf.compat.v1


def alike(results):
    """A `check`: all workers measure the same."""
    results = [result for result in results if result is not None]
    assert all(result == results[0] for result in results), results


def rows_fn(rows):
    """An input_fn of `rows` rows, once; a worker's batches have 12."""

    def make(input_context=None):
        data = input_fn()(input_context).unbatch()
        if input_context is None:
            return data.take(rows).batch(24)
        rank, workers = input_context.input_pipeline_id, input_context.num_input_pipelines
        return data.take(len(range(rank, rows, workers))).batch(12)

    return make


@pytest.mark.long(
    "*-normalized",
    covered_by=(
        "the other cases, "
        "parallel/estimator/test_estimator_parity.py::test_moving_statistics_in_sync"
    ),
)
@pytest.mark.parametrize("model", [{}, {"normalized": None}], ids=["plain", "normalized"])
@on_ranks(2, check=alike)
def test_all_workers_evaluate_with_all_reduce(ctx, model):
    strategy = STRATEGIES["all_reduce"]()
    together = estimators.make(ctx.tmp_path / "model", strategy, eval_distribute=strategy, **model)
    together.train(input_fn(), max_steps=10)
    if ctx.rank == 0:
        time.sleep(0.5)  # its last save is for all, though others come sooner
    even = together.evaluate(rows_fn(24 * 5))
    # One worker has a batch more than the other.
    uneven = together.evaluate(rows_fn(24 * 4 + 1))
    meet(ctx, "evaluated")
    assert len(list(Path(together.eval_dir()).glob("events*"))) == 1
    meet(ctx, "counted")
    if ctx.rank == 0:
        alone = estimators.make(ctx.tmp_path / "model", **model)
        expected = alone.evaluate(rows_fn(24 * 5))
        assert expected.keys() == even.keys() == {"accuracy", "loss", "global_step"}
        assert difference([*even.values()], [expected[name] for name in even]) <= EXACT
        expected = alone.evaluate(rows_fn(24 * 4 + 1))
        assert abs(uneven["accuracy"] - expected["accuracy"]) <= EXACT
    return even, uneven


def on_servers(strategy, directory):
    """The servers' values of a model that this process has trained, by name."""
    with tf.Graph().as_default(), strategy.scope():
        variables = {
            name: v1.get_variable(name, initializer=tf.zeros_like(value), trainable=False)
            for name, value in saved(directory).items()
        }
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            return session.run(variables)


@pytest.mark.long("*-async", covered_by="the other cases")
@pytest.mark.parametrize("kind", ["async", "sync"])
@on_job(2, check=alike)
def test_evaluating_does_not_change_servers(ctx, kind):
    """Each worker evaluates by itself, here an older checkpoint."""
    if served():
        return None
    strategy = STRATEGIES[kind]()
    directory = ctx.tmp_path / "model"
    together = estimators.make(
        directory, strategy, eval_distribute=strategy, save_checkpoints_steps=10
    )
    together.train(input_fn(), max_steps=20)
    meet(ctx, "trained")
    first = str(directory / "model.ckpt-0")
    pushes = strategy.communication_stats().pushes
    evaluated = together.evaluate(rows_fn(101), checkpoint_path=first)
    predicted = list(together.predict(rows_fn(30), checkpoint_path=first))
    assert len(predicted) == 30
    assert strategy.communication_stats().pushes == pushes
    meet(ctx, "evaluated")
    now, then = on_servers(strategy, directory), saved(directory)
    assert then["global_step"] >= 20
    for name in then:
        np.testing.assert_array_equal(now[name], then[name])
    alone = estimators.make(directory)
    expected = alone.evaluate(lambda: rows_fn(101)(None), checkpoint_path=first)
    assert difference([evaluated[n] for n in expected], [*expected.values()]) <= EXACT
    return evaluated
