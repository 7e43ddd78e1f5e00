"""The values that an Estimator's workers begin with, and that the chief saves."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from parallel.estimator.test_estimator_ends import train
from parallel.estimator.test_estimator_parity import MOVING, agree
from support.estimator import estimators
from support.estimator.estimators import STRATEGIES, checkpoints, input_fn, same, saved
from support.processes.ranks import on_ranks
from support.ps_job import meet, on_job, served
from support.training.models import ADAPTIVE, EXACT, difference, identical
from tfdist import estimator

v1 = tf.compat.v1
MODELS = {"plain": {}, "normalized": {"normalized": 12}}


class Listener(v1.train.CheckpointSaverListener):
    """Notes what is saved."""

    def __init__(self):
        self.events = []

    def before_save(self, session, global_step_value):
        self.events.append(("before", global_step_value))

    def after_save(self, session, global_step_value):
        self.events.append(("after", global_step_value))


def listens(ctx, kind):
    listener = Listener()
    strategy = STRATEGIES[kind]()
    trained = estimators.make(
        ctx.tmp_path / "model", strategy, save_checkpoints_steps=10, normalized=12
    )
    trained.train(input_fn(), max_steps=15, saving_listeners=[listener])
    expected = [(when, step) for step in (0, 10, 15) for when in ("before", "after")]
    assert listener.events == (expected if ctx.rank == 0 else [])


@pytest.mark.long(covered_by="test_saving_listeners_in_sync")
@on_ranks(2)
def test_saving_listeners_with_all_reduce(ctx):
    listens(ctx, "all_reduce")


@on_job(2)
def test_saving_listeners_in_sync(ctx):
    if not served():
        listens(ctx, "sync")


@pytest.mark.long(covered_by="test_saving_listeners_in_sync")
@on_ranks(2, check=identical)
def test_checkpoints_by_the_clock(ctx):
    """The chief's says when, also where to save takes all workers."""
    strategy, values = STRATEGIES["all_reduce"](), []
    for name, model in MODELS.items():
        options = {"save_checkpoints_secs": 0.1, "keep_checkpoint_max": 100, **model}
        hook = estimators.Steps(slowness=0.01)
        data = input_fn(batches=(60, 80))
        values += train(ctx, "all_reduce", data, [hook], None, strategy, name, **options)
        steps = checkpoints(ctx.tmp_path / name)
        if ctx.rank == 0:
            assert steps[0] == 0 and steps[-1] == 60 and len(steps) > 3, steps
    return values


def save_as_the_user_says(ctx, strategy, name, of_chief, **params):
    """With a hook that is given to all workers, or that the model gives to the chief."""
    directory = ctx.tmp_path / f"{name} {of_chief}"
    hook = v1.train.CheckpointSaverHook(str(directory), save_steps=6)

    def model_fn(features, labels, mode, params):
        spec = estimators.model_fn(features, labels, mode, params)
        return spec._replace(training_chief_hooks=[hook] if of_chief else [])

    seen = estimators.Seen(strategy)
    config = estimators.config(directory, strategy, save_checkpoints_steps=5)
    trained = estimator.Estimator(model_fn, config=config, params=params)
    trained.train(input_fn(), hooks=[seen] if of_chief else [seen, hook], max_steps=15)
    if ctx.rank == 0:
        assert checkpoints(directory) == [0, 6, 12, 15]
        alone = estimators.make(ctx.tmp_path / f"{name} {of_chief} alone", **params)
        alone.train(input_fn(), max_steps=15)
        same(saved(directory), saved(alone.model_dir), EXACT)
    return seen.all(without=MOVING)


def save_in_all_ways(ctx, kind, models):
    strategy = STRATEGIES[kind]()
    ways = [(name, of_chief) for name in models for of_chief in (False, True)]
    return sum((save_as_the_user_says(ctx, strategy, *way, **MODELS[way[0]]) for way in ways), [])


@pytest.mark.long(covered_by="test_a_saver_hook_of_the_users_in_sync")
@on_ranks(2, check=identical)
def test_a_saver_hook_of_the_users_with_all_reduce(ctx):
    return save_in_all_ways(ctx, "all_reduce", MODELS)


@on_job(2, check=agree)
def test_a_saver_hook_of_the_users_in_sync(ctx):
    return None if served() else save_in_all_ways(ctx, "sync", ["plain"])


def with_scaffold(features, labels, mode, params):
    """A model that keeps two checkpoints; the chief starts from a layer of another model."""
    spec = estimators.model_fn(features, labels, mode, params)
    first = [v for v in v1.trainable_variables() if "second" not in v.name]
    of_first = v1.train.Saver(first)

    def restore(scaffold, session):
        if params["is_chief"]:
            of_first.restore(session, params["source"])

    scaffold = v1.train.Scaffold(saver=v1.train.Saver(max_to_keep=2), init_fn=restore)
    return spec._replace(scaffold=scaffold)


def source_of(ctx):
    """A checkpoint of 10 steps that all workers can begin with."""
    directory = ctx.tmp_path / "source"
    if ctx.rank == 0:
        estimators.make(directory).train(input_fn(), max_steps=10)
    meet(ctx, "source")
    return directory


def begin_with_another_checkpoint(ctx, kind):
    """Trains twice a model that starts from the first layer of `source_of`."""
    source, strategy, values = source_of(ctx), STRATEGIES[kind](), []
    for make in (by_init_fn, by_warm_start):
        directories = [ctx.tmp_path / f"{make.__name__} {how}" for how in ("together", "alone")]
        seen = [estimators.Seen(strategy), estimators.Seen(strategy)]
        make(source, directories[0], strategy).train(input_fn(), max_steps=9, hooks=seen[:1])
        for name in ("layers/first", "layers/bias"):
            value = seen[0].first[seen[0].names.index(name)]
            np.testing.assert_array_equal(value, saved(source)[name])
        if ctx.rank == 0:
            assert checkpoints(directories[0]) == [6, 9]
            make(source, directories[1], None).train(input_fn(), max_steps=9)
            same(*map(saved, directories), EXACT)
        # Restored values, and values on the servers, stay; old checkpoints are still counted.
        make(source, directories[0], strategy).train(input_fn(), max_steps=12, hooks=seen[1:])
        assert difference(seen[1].first, seen[0].last) == 0
        assert ctx.rank > 0 or checkpoints(directories[0]) == [9, 12]
        values += seen[0].all() + seen[1].all()
    return values


def by_init_fn(source, directory, strategy):
    config = estimators.config(directory, strategy, save_checkpoints_steps=3)
    source = tf.train.latest_checkpoint(str(source))
    params = {"source": source, "is_chief": config.is_chief}
    return estimator.Estimator(with_scaffold, config=config, params=params)


def by_warm_start(source, directory, strategy):
    settings = estimator.WarmStartSettings(str(source), vars_to_warm_start="layers/[fb].*")
    config = estimators.config(directory, strategy, save_checkpoints_steps=3, keep_checkpoint_max=2)
    return estimator.Estimator(
        estimators.model_fn, config=config, params={}, warm_start_from=settings
    )


@on_ranks(2, check=identical)
def test_beginning_with_another_checkpoint_with_all_reduce(ctx):
    return begin_with_another_checkpoint(ctx, "all_reduce")


@pytest.mark.long(covered_by="test_beginning_with_another_checkpoint_with_all_reduce")
@on_job(2, check=agree)
def test_beginning_with_another_checkpoint_in_sync(ctx):
    return None if served() else begin_with_another_checkpoint(ctx, "sync")


def trains_in_turns(ctx, kind):
    """Two Estimators of the same variables; the second continues after the first."""
    values = []
    for name, seed, steps in [("a", 0, 5), ("b", 1, 8), ("a", 0, 7)]:
        trained = [
            estimators.make(ctx.tmp_path / f"{name} {how}", strategy, seed, optimizer="adam")
            for how, strategy in [("together", STRATEGIES[kind]()), ("alone", None)]
        ]
        seen = estimators.Seen(trained[0].config.train_distribute)
        trained[0].train(input_fn(), steps=steps, hooks=[seen])
        values += seen.all()
        if ctx.rank == 0:
            trained[1].train(input_fn(), steps=steps)
            same(*(saved(t.model_dir) for t in trained), ADAPTIVE)
    if ctx.rank == 0:
        assert saved(ctx.tmp_path / "a together")["global_step"] == 12
    return values


@pytest.mark.long(covered_by="test_two_in_turns_async")
@on_ranks(2, check=identical)
def test_two_in_turns_with_all_reduce(ctx):
    return trains_in_turns(ctx, "all_reduce")


@pytest.mark.long(covered_by="test_two_in_turns_async")
@on_job(2, check=agree)
def test_two_in_turns_in_sync(ctx):
    return None if served() else trains_in_turns(ctx, "sync")


@on_job(1)
def test_two_in_turns_async(ctx):
    if not served():
        trains_in_turns(ctx, "async")
