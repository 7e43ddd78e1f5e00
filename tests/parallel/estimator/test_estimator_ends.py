"""How workers that train an Estimator together come to an end, and what is saved then."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from parallel.estimator.test_estimator_parity import MOVING, agree
from support.estimator import estimators
from support.estimator.estimators import STRATEGIES, input_fn, saved
from support.processes.ranks import on_ranks
from support.ps_job import meet, on_job, served
from support.training.models import identical
from tfdist import estimator
from tfdist.estimator.training.worker_states import WorkerStates

v1 = tf.compat.v1


def train(ctx, kind, data, hooks=(), max_steps=None, strategy=None, name="model", **options):
    """Trains; returns what the worker has seen."""
    strategy = strategy or STRATEGIES[kind]()
    seen = estimators.Seen(strategy)
    trained = estimators.make(ctx.tmp_path / name, strategy, **options)
    trained.train(data, hooks=[seen, *hooks], max_steps=max_steps)
    return seen.all(without=MOVING)


def end_early(ctx, kind, **options):
    """By the chief's input, the other worker's, or a hook; all workers make the same steps."""
    strategy, values = STRATEGIES[kind](), []
    stop = [estimators.Steps(7)] if ctx.rank == 1 else []
    for name, batches, hooks, steps in [
        ("chief", (12, 20), [], 12),
        ("worker", (20, 11), [], 11),
        ("hook", None, stop, 7),
    ]:
        counter, data = estimators.Steps(), input_fn(batches=batches)
        values += train(ctx, kind, data, [counter, *hooks], None, strategy, name, **options)
        assert counter.count == steps, name
        assert ctx.rank > 0 or saved(ctx.tmp_path / name)["global_step"] == steps
    return values


@on_ranks(2, check=identical)
def test_all_end_together_with_all_reduce(ctx):
    return end_early(ctx, "all_reduce", normalized=12)


@pytest.mark.long(covered_by="test_all_end_together_with_all_reduce")
@on_job(2, check=agree)
def test_all_end_together_in_sync(ctx):
    return None if served() else end_early(ctx, "sync")


def stop_at_third_call(ctx, kind):
    calls = []

    def stop():
        calls.append(1)
        return len(calls) == 3

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
    seen = train(ctx, kind, input_fn(), [counter, hook], **options)
    return seen, counter, calls


@on_ranks(2, check=identical)
def test_early_stopping_with_all_reduce(ctx):
    seen, counter, calls = stop_at_third_call(ctx, "all_reduce")
    assert (counter.count, len(calls)) == (11, 3)  # at steps 1, 6 and 11
    return seen


@pytest.mark.long(
    covered_by="test_early_stopping_with_all_reduce, test_stopping_if_a_metric_is_lower_in_sync"
)
@on_job(2, check=agree)
def test_early_stopping_in_sync(ctx):
    if served():
        return None
    seen, counter, calls = stop_at_third_call(ctx, "sync")
    assert (counter.count, len(calls)) == (11, 3)
    return seen


@pytest.mark.long(
    covered_by="test_early_stopping_with_all_reduce, test_max_steps_are_those_of_all_async"
)
@on_job(2)
def test_early_stopping_async(ctx):
    if served():
        return
    _, counter, calls = stop_at_third_call(ctx, "async")
    # The first worker with three calls stops both; neither has another reason to stop.
    assert len(calls) <= 3 and counter.count > 0


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


def after(ctx, name, data):
    """An input_fn as `data`, whose first batch comes when all workers are at `name`."""

    def wait(index):
        if index == 0:
            meet(ctx, name)
        return index

    def begin(index, batch):
        with tf.control_dependencies([tf.numpy_function(wait, [index], tf.int64)]):
            return tf.nest.map_structure(tf.identity, batch)

    return lambda input_context: data(input_context).enumerate().map(begin)


@on_job(2)
def test_the_chief_saves_the_last_step_of_another_async(ctx):
    """The step is pushed after the chief read the count, before it reads which workers train."""
    if served():
        return
    model = ctx.tmp_path / "model"
    trained = estimators.make(model, STRATEGIES["async"](), save_checkpoints_steps=10)
    data, states = after(ctx, "began", input_fn()), WorkerStates._states
    meet(ctx, "joined")
    if ctx.rank == 0:

        def look_late(self, session):
            meet(ctx, "chief has ended")
            meet(ctx, "all have ended")
            return states(self, session)

        WorkerStates._states = look_late
        trained.train(data, max_steps=20)
        assert saved(model)["global_step"] == 21
    else:
        # The chief makes all steps while this worker is within its first.
        trained.train(after(ctx, "chief has ended", data), max_steps=20)
        meet(ctx, "all have ended")


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
