"""An Estimator on N workers equals one without a strategy that has the N times larger batch."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import tensorflow as tf

from support.estimator import estimators
from support.estimator.estimators import BATCH, STEPS, STRATEGIES, TOLERANCES, input_fn, same, saved
from support.processes.ranks import on_ranks
from support.ps_job import on_job, served
from support.training.models import ADAPTIVE, identical
from tfdist import estimator

MOVING = [f"batch_normalization/moving_{name}" for name in ("mean", "variance")]


def agree(results):
    """A `check` of `on_job`: the workers returned the same."""
    identical([result for result in results if result is not None])


def train_like_alone(ctx, kind, optimizers=("sgd",), **options):
    """Trains with a strategy and, on rank 0, without; asserts that both save the same.

    With all-reduce each worker has a seed of its own, so that its variables equal the others' only
    if they are given to it. (On servers, the first worker makes the variables.)

    Returns:
      This worker's values of all trainings, except moving statistics, which are its own.
    """
    strategy, values = STRATEGIES[kind](), []
    for optimizer in optimizers:
        seen = estimators.Seen(strategy)
        options |= {"optimizer": optimizer}
        seed = ctx.rank if kind == "all_reduce" else 0
        together = estimators.make(ctx.tmp_path / f"{optimizer} all", strategy, seed, **options)
        together.train(input_fn(), hooks=[seen], max_steps=STEPS)
        values += seen.all(without=MOVING)
        if ctx.rank == 0:
            single = estimators.make(ctx.tmp_path / f"{optimizer} alone", **options)
            single.train(input_fn(), max_steps=STEPS)
            same(saved(together.model_dir), saved(single.model_dir), TOLERANCES[optimizer])
            assert saved(single.model_dir)["global_step"] == STEPS
    return values


@on_ranks(2, check=identical)
def test_all_reduce(ctx):
    return train_like_alone(ctx, "all_reduce", TOLERANCES)


@pytest.mark.long(covered_by="test_all_reduce")
@on_ranks(3, check=identical)
def test_all_reduce_on_three_workers(ctx):
    return train_like_alone(ctx, "all_reduce")


@on_job(2, check=agree)
def test_sync(ctx):
    return None if served() else train_like_alone(ctx, "sync", TOLERANCES)


@pytest.mark.long(covered_by="test_sync")
@on_job(2, servers=2, check=agree)
def test_sync_with_two_servers(ctx):
    return None if served() else train_like_alone(ctx, "sync", ["adam"])


@on_job(1)
def test_async_with_one_worker(ctx):
    if not served():
        train_like_alone(ctx, "async", TOLERANCES)


@pytest.mark.long(covered_by="test_moving_statistics_in_sync")
@on_ranks(2, check=identical)
def test_moving_statistics_with_all_reduce(ctx):
    return train_like_alone(ctx, "all_reduce", normalized=BATCH // 2)


@on_job(2, check=agree)
def test_moving_statistics_in_sync(ctx):
    return None if served() else train_like_alone(ctx, "sync", normalized=BATCH // 2)


def go_on_like_alone(ctx, kind, make, data, tolerance, back=True):
    """Continues from a checkpoint without a strategy, and without a strategy from its save."""
    directories = [ctx.tmp_path / "alone", ctx.tmp_path / "together"]
    if ctx.rank == 0:
        make(directories[0]).train(data, max_steps=3)
        shutil.copytree(*directories)
    strategy = STRATEGIES[kind]()
    seen = estimators.Seen(strategy)
    make(directories[1], strategy).train(data, hooks=[seen], max_steps=STEPS)
    began_with = saved(directories[1], 3)
    assert began_with.keys() == set(seen.names)
    for name, value in zip(seen.names, seen.first, strict=True):
        np.testing.assert_array_equal(value, began_with[name], err_msg=name)
    if ctx.rank == 0:
        make(directories[0]).train(data, max_steps=STEPS)
        same(*map(saved, directories), tolerance)
        for directory in directories if back else []:
            make(directory).train(data, max_steps=STEPS + 5)
            assert saved(directory)["global_step"] == STEPS + 5
        same(*map(saved, directories), tolerance)
    return seen.all()


def adam(directory, strategy=None):
    return estimators.make(directory, strategy, optimizer="adam", save_checkpoints_steps=STEPS)


def linear_and_deep(directory, strategy=None):
    """The canned Estimator with its own optimizers, Ftrl and Adagrad."""
    column = tf.feature_column
    numbers = column.numeric_column("x", shape=[6])
    words = column.categorical_column_with_vocabulary_list("word", ["a", "b", "c"])
    return estimator.DNNLinearCombinedClassifier(
        linear_feature_columns=[numbers, words],
        dnn_feature_columns=[numbers, column.embedding_column(words, 2)],
        dnn_hidden_units=[8],
        n_classes=3,
        config=estimators.config(directory, strategy, save_checkpoints_steps=STEPS),
    )


def words_too(input_context=None):
    def add(features, labels):
        word = tf.gather(["a", "b", "c", "d"], tf.cast(features["x"][:, 0] * 10, tf.int32) % 4)
        return {**features, "word": word}, labels

    return input_fn()(input_context).map(add)


@pytest.mark.long(covered_by="test_all_reduce, parallel/estimator/test_estimator_resume.py")
@on_ranks(2, check=identical)
def test_all_reduce_goes_on_and_back(ctx):
    return go_on_like_alone(ctx, "all_reduce", adam, input_fn(), ADAPTIVE)


@pytest.mark.long(covered_by="test_sync, parallel/estimator/test_estimator_resume.py")
@on_job(2, check=agree)
def test_sync_goes_on_and_back(ctx):
    return None if served() else go_on_like_alone(ctx, "sync", adam, input_fn(), ADAPTIVE)


@pytest.mark.long(
    covered_by="test_async_with_one_worker, parallel/estimator/test_estimator_resume.py"
)
@on_job(1)
def test_async_goes_on_and_back(ctx):
    if not served():
        go_on_like_alone(ctx, "async", adam, input_fn(), ADAPTIVE)


@on_ranks(2, check=identical)
def test_canned_with_all_reduce(ctx):
    return go_on_like_alone(ctx, "all_reduce", linear_and_deep, words_too, ADAPTIVE, back=False)


@pytest.mark.long(covered_by="test_canned_with_all_reduce, test_sync")
@on_job(2, servers=2, check=agree)
def test_canned_in_sync(ctx):
    if served():
        return None
    return go_on_like_alone(ctx, "sync", linear_and_deep, words_too, ADAPTIVE, back=False)


@pytest.mark.long(covered_by="test_canned_with_all_reduce, test_async_with_one_worker")
@on_job(1)
def test_canned_async(ctx):
    if not served():
        go_on_like_alone(ctx, "async", linear_and_deep, words_too, ADAPTIVE, back=False)
