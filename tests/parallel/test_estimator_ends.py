"""How workers that train an Estimator together come to an end, and what is saved then."""

from __future__ import annotations

import estimators
import numpy as np
import pytest
import tensorflow as tf
from estimators import STRATEGIES, input_fn, saved
from models import identical
from ps_job import meet, on_job, served
from ranks import on_ranks
from test_estimator_parity import MOVING, agree

from tfdist import estimator

v1 = tf.compat.v1


def train(ctx, kind, data, hooks=(), max_steps=None, strategy=None, **options):
    """Trains; returns what the worker has seen, and its Estimator."""
    strategy = strategy or STRATEGIES[kind]()
    seen = estimators.Seen(strategy)
    trained = estimators.make(ctx.tmp_path / "model", strategy, **options)
    trained.train(data, hooks=[seen, *hooks], max_steps=max_steps)
    return seen, trained


def ends_early(ctx, kind, data, hooks, steps, **options):
    """Trains; asserts that this worker makes so many steps and that they are saved."""
    counter = estimators.Steps()
    seen, _ = train(ctx, kind, data, [counter, *hooks], **options)
    assert counter.count == steps
    if ctx.rank == 0:
        assert saved(ctx.tmp_path / "model")["global_step"] == steps
        assert not (ctx.tmp_path / "model" / "training_end.json").exists()
    return seen.all(without=MOVING)


@pytest.mark.parametrize("batches", [(12, 20), (20, 12)], ids=["chief", "worker"])
@on_ranks(2, check=identical)
def test_uneven_inputs_with_all_reduce(ctx, batches):
    return ends_early(ctx, "all_reduce", input_fn(batches=batches), [], 12)


@pytest.mark.parametrize("batches", [(12, 20), (20, 12)], ids=["chief", "worker"])
@on_job(2, check=agree)
def test_uneven_inputs_in_sync(ctx, batches):
    if served():
        return None
    return ends_early(ctx, "sync", input_fn(batches=batches), [], 12)


@on_ranks(2, check=identical)
def test_a_hook_stops_one_worker_with_all_reduce(ctx):
    hooks = [estimators.Steps(7)] if ctx.rank == 1 else []
    return ends_early(ctx, "all_reduce", input_fn(), hooks, 7, normalized=12)


@on_job(2, check=agree)
def test_a_hook_stops_one_worker_in_sync(ctx):
    if served():
        return None
    return ends_early(ctx, "sync", input_fn(), [estimators.Steps(7)] if ctx.rank == 1 else [], 7)


def stop_when_asked_thrice(ctx, kind):
    asked = []

    def stop():
        asked.append(1)
        return len(asked) == 3

    strategy = STRATEGIES[kind]()
    options = {"strategy": strategy, "save_checkpoints_steps": 100}
    config = estimators.config(ctx.tmp_path / "model", strategy)
    hook = estimator.experimental.make_early_stopping_hook(
        estimator.Estimator(estimators.model_fn, config=config),
        stop,
        run_every_secs=None,
        run_every_steps=5,
    )
    counter = estimators.Steps(slowness=0.001)
    seen, _ = train(ctx, kind, input_fn(), [counter, hook], **options)
    return seen, counter, asked


@on_ranks(2, check=identical)
def test_early_stopping_with_all_reduce(ctx):
    seen, counter, asked = stop_when_asked_thrice(ctx, "all_reduce")
    assert (counter.count, len(asked)) == (11, 3)  # at steps 1, 6 and 11
    return seen.all()


@on_job(2, check=agree)
def test_early_stopping_in_sync(ctx):
    if served():
        return None
    seen, counter, asked = stop_when_asked_thrice(ctx, "sync")
    assert (counter.count, len(asked)) == (11, 3)
    return seen.all()


@on_job(2)
def test_early_stopping_async(ctx):
    if served():
        return
    _, counter, asked = stop_when_asked_thrice(ctx, "async")
    # Whoever comes first to three questions; neither has any other reason to stop.
    assert len(asked) <= 3 and counter.count > 0


@on_job(2, check=agree)
def test_stopping_if_a_metric_is_lower_in_sync(ctx):
    """The evaluator has written what it measured."""
    if served():
        return None
    strategy = STRATEGIES["sync"]()
    trained = estimators.make(ctx.tmp_path / "model", strategy)
    if ctx.rank == 0:
        value = v1.Summary.Value(tag="accuracy", simple_value=0.5)
        with tf.Graph().as_default(), v1.summary.FileWriter(trained.eval_dir()) as writer:
            writer.add_summary(v1.Summary(value=[value]), 3)
    meet(ctx, "evaluated")
    counter, hooks = estimators.Steps(), []
    for threshold in (0.4, 0.6):
        hook = estimator.experimental.stop_if_lower_hook(
            trained, "accuracy", threshold, run_every_secs=None, run_every_steps=5
        )
        hooks.append(hook)
    trained.train(input_fn(), hooks=[counter, hooks[0]], max_steps=20)
    assert counter.count == 20
    trained.train(input_fn(), hooks=[counter, hooks[1]], max_steps=40)
    assert counter.count == 21
    return [np.array(counter.count)]


def last_step_is_shared(counts):
    """A `check`: workers have not made more steps together than they must."""
    made, step = [c for c in counts if c is not None], counts[0][1]
    assert sum(count for count, _ in made) == step and 60 <= step <= 62, counts


@on_job(3, check=last_step_is_shared)
def test_max_steps_are_those_of_all_async(ctx):
    if served():
        return None
    strategy = STRATEGIES["async"]()
    meet(ctx, "joined")
    counter = estimators.Steps(slowness=0.01)
    train(ctx, "async", input_fn(), [counter], 60, strategy)
    step = saved(ctx.tmp_path / "model")["global_step"] if ctx.rank == 0 else None
    return counter.count, step


@on_job(2, timeout=30)
def test_each_worker_trains_on_all_it_has_async(ctx):
    if served():
        return 0
    counter = estimators.Steps(slowness=0.02 * ctx.rank)
    train(ctx, "async", input_fn(batches=(10, 30)), [counter])
    assert counter.count == (10, 30)[ctx.rank]
    if ctx.rank == 0:
        assert saved(ctx.tmp_path / "model")["global_step"] == 40
    return counter.count
