"""`model_to_estimator` in a job: all workers begin with the chief's model and train as one does."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from parallel.estimator.test_estimator_evaluation import rows_fn
from parallel.estimator.test_estimator_parity import agree
from support.estimator import estimators
from support.estimator.estimator_data import ignore_warnings
from support.estimator.estimators import BATCH, STRATEGIES, input_fn
from support.processes.logical_devices import two_devices
from support.processes.ranks import on_ranks
from support.ps_job import on_job, served
from support.training.models import ADAPTIVE, EXACT, difference, identical
from tfdist import estimator

pytestmark = ignore_warnings
v1 = tf.compat.v1
STEPS = 12
FORMATS = ["checkpoint", "saver"]


def make(ctx, name, checkpoint_format, strategy=None):
    """Makes the Estimator of a model that differs by rank."""
    config = estimators.config(
        ctx.tmp_path / f"{name} {checkpoint_format}", strategy, ctx.rank, eval_distribute=strategy
    )
    with estimators.alone() if strategy is None else contextlib.nullcontext():
        model = estimators.keras_model(ctx.rank)
        made = estimator.model_to_estimator(
            model, config=config, checkpoint_format=checkpoint_format
        )
    return model, made


def train_like_alone(ctx, kind, checkpoint_format, replicas=2):
    """Trains on all workers, and on rank 0 alone; returns what this worker has seen."""
    strategy = STRATEGIES[kind]()
    model, together = make(ctx, "together", checkpoint_format, strategy)
    # A worker of all-reduce takes a batch for each of its devices.
    part = input_fn(BATCH * 2 // replicas)
    seen, before = estimators.Seen(strategy), {}
    if kind == "all_reduce":
        before = together.evaluate(rows_fn(BATCH * 2))
    together.train(part, hooks=[seen], max_steps=STEPS)
    values = [*seen.all(), *before.values()]
    if ctx.rank > 0:
        return values
    first = dict(zip(seen.names, seen.first, strict=True))
    kernels = [(v.path, v.numpy()) for v in model.trainable_variables]
    for path, value in kernels:
        np.testing.assert_array_equal(first[path.partition("/")[2]], value, err_msg=path)
    _, alone = make(ctx, "alone", checkpoint_format)
    if before:
        expected = alone.evaluate(rows_fn(BATCH * 2))
        # tf_keras divides it by the replicas, as it did in TensorFlow 2.15.
        before["loss"] *= replicas
        assert difference([before[n] for n in expected], [*expected.values()]) <= EXACT
    alone.train(input_fn(BATCH), max_steps=STEPS)
    found, wanted = (estimators.numbers(made.model_dir) for made in (together, alone))
    assert found.keys() == wanted.keys() and len(found) > len(kernels)
    for name in found:
        assert difference([found[name]], [wanted[name]]) <= ADAPTIVE, name
    return values


@pytest.mark.long(
    covered_by=(
        "test_async_with_one_worker, parallel/estimator/test_estimator_parity.py::test_all_reduce"
    )
)
@on_ranks(2, check=identical)
def test_all_reduce(ctx):
    return [value for name in FORMATS for value in train_like_alone(ctx, "all_reduce", name)]


@pytest.mark.long(covered_by="test_async_with_one_worker")
@on_ranks(2, check=identical)
def test_all_reduce_with_two_devices_a_worker(ctx):
    two_devices()
    return train_like_alone(ctx, "all_reduce", "saver", replicas=4)


@pytest.mark.long(
    covered_by="test_async_with_one_worker, parallel/estimator/test_estimator_parity.py::test_sync"
)
@on_job(2, check=agree)
def test_sync(ctx):
    if served():
        return None
    return [value for name in FORMATS for value in train_like_alone(ctx, "sync", name)]


@on_job(1)
def test_async_with_one_worker(ctx):
    if not served():
        train_like_alone(ctx, "async", "checkpoint")


@on_ranks(2)
def test_only_a_worker_that_is_not_the_chief_warm_starts(ctx):
    """The chief knows nothing of it, so it must not be dropped without a word."""
    directory = ctx.tmp_path / "source"
    if ctx.rank == 0:
        estimators.make(directory).train(input_fn(), max_steps=1)
    ctx.barrier("source")
    strategy = STRATEGIES["all_reduce"]()
    config = estimators.config(ctx.tmp_path / "model", strategy)
    source = str(directory) if ctx.rank == 1 else None
    made = estimator.Estimator(
        estimators.model_fn, config=config, params={}, warm_start_from=source
    )
    expected = (
        pytest.raises(ValueError, match="on rank 1 and none on the chief")
        if ctx.rank == 1
        else pytest.raises(tf.errors.UnavailableError)
    )
    with expected:
        made.train(input_fn(), max_steps=1)
