"""Training with a remote embedding equals training with a dense kernel."""

from __future__ import annotations

import os

import keras
import pytest
import tf_keras

import tfdist
from support.processes.ranks import on_ranks
from support.ps_job import on_job, served
from support.tiers import chosen
from support.training.embeddings import DENSE_ROWS, dataset, train_like_dense
from support.training.models import ADAPTIVE, EXACT

optimizers = keras.optimizers
# Of the table, and the model's.
OF_ROWS = {
    "sgd": ("sgd", lambda: optimizers.SGD(0.1)),
    "momentum": (
        optimizers.SGD(0.05, momentum=0.9, nesterov=True),
        lambda: optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    ),
    "adagrad": ("adagrad", lambda: optimizers.Adagrad(0.1)),
    "rmsprop": ("rmsprop", lambda: optimizers.RMSprop(0.01)),
    "adam": ("exact_adam", lambda: optimizers.Adam(0.01)),
    "ftrl": ("ftrl", lambda: optimizers.Ftrl(0.1)),
    "group_ftrl": ("group_ftrl", lambda: optimizers.Ftrl(0.1)),
}
OF_MODEL = {
    "clipnorm": lambda: optimizers.SGD(0.1, clipnorm=0.01),
    "global_clipnorm": lambda: optimizers.SGD(0.1, global_clipnorm=0.01),
    "clipvalue": lambda: optimizers.SGD(0.1, clipvalue=0.001),
    "accumulation": lambda: optimizers.SGD(0.1, gradient_accumulation_steps=3),
    "clipped_accumulation": lambda: optimizers.SGD(
        0.1, gradient_accumulation_steps=2, global_clipnorm=0.01
    ),
    "schedule": lambda: optimizers.SGD(optimizers.schedules.CosineDecay(0.1, 12)),
    "loss_scale": lambda: optimizers.LossScaleOptimizer(
        optimizers.SGD(0.1), initial_scale=8.0, dynamic_growth_steps=3
    ),
    "loss_scale_factor": lambda: optimizers.SGD(0.1, loss_scale_factor=16.0),
    "weight_decay_of_dense": lambda: _without_decay_of_rows(optimizers.SGD(0.1, weight_decay=0.1)),
}


def _without_decay_of_rows(optimizer):
    # Of the dense stand-in; a table's never decay.
    optimizer.exclude_from_weight_decay(var_names=[DENSE_ROWS])
    return optimizer


# Unlike SGD, these divide by small numbers.
TOLERANCES = {"adam": ADAPTIVE, "rmsprop": ADAPTIVE}


# An optimizer with slots, and one with a step count.
@pytest.mark.long("*ftrl", covered_by="the other cases")
@pytest.mark.long("*-sgd", "*-momentum", "*-rmsprop", "*-group_ftrl", covered_by="the other cases")
@pytest.mark.parametrize("name", OF_ROWS)
@on_job(1, 2)
def test_of_rows(ctx, name):
    if served():
        return
    of_rows, of_model = OF_ROWS[name]
    strategy = tfdist.ParameterServerStrategy()
    options = {}
    if name in ("momentum", "rmsprop"):
        # A row without a gradient keeps still, where a dense variable's slots continue: one batch.
        options = {"rows": 16}
    if name in ("ftrl", "group_ftrl"):
        # Ftrl's first step drops a variable's initial value, with a gradient or without.
        options = {"first": 0.0}
    train_like_dense(strategy, of_model, of_rows, tolerance=TOLERANCES.get(name, EXACT), **options)


# Each kind of gradient once.
@pytest.mark.long("*clipped_accumulation", "*global_clipnorm", covered_by="the other cases")
@pytest.mark.long(
    "*-clipnorm",
    "*-clipvalue",
    "*-accumulation",
    "*-schedule",
    "*-loss_scale_factor",
    covered_by="the other cases",
)
@pytest.mark.parametrize("name", OF_MODEL)
@on_job(1, 2)
def test_of_model(ctx, name):
    if served():
        return
    train_like_dense(tfdist.ParameterServerStrategy(), OF_MODEL[name], "sgd")


@pytest.mark.long("*several_steps", covered_by="the other cases")
@pytest.mark.parametrize(
    "compiled", [{"run_eagerly": True}, {"steps_per_execution": 3}], ids=["eager", "several_steps"]
)
@on_job(1)
def test_ways_to_run(ctx, compiled):
    if served():
        return
    train_like_dense(
        tfdist.ParameterServerStrategy(), lambda: optimizers.Adagrad(0.1), "adagrad", **compiled
    )


@pytest.mark.parametrize("mode", ["sync", "ssp"])
@on_job(1)
def test_modes_with_one_worker(ctx, mode):
    if served():
        return
    staleness = {"staleness": 2} if mode == "ssp" else {}
    strategy = tfdist.ParameterServerStrategy(mode=mode, **staleness)
    train_like_dense(strategy, lambda: optimizers.Adagrad(0.1), "adagrad")


@pytest.mark.long("*-adam", covered_by="the other cases")
@pytest.mark.parametrize("name", ["adagrad", "adam"])
@on_job(2, 2)
def test_two_workers_in_sync(ctx, name):
    if served():
        return
    of_rows, of_model = OF_ROWS[name]
    train_like_dense(
        tfdist.ParameterServerStrategy(mode="sync"),
        of_model,
        of_rows,
        tolerance=TOLERANCES.get(name, EXACT),
    )


CLIPPED = {
    name: OF_MODEL[name]
    for name in ("clipnorm", "global_clipnorm", "clipvalue", "clipped_accumulation")
}


@on_job(2, 2)
def test_clipping_of_two_workers(ctx):
    """Rows of all workers are added up before they are clipped, with the dense variables."""
    if served():
        return
    for of_model in chosen(CLIPPED, "global_clipnorm").values():
        train_like_dense(tfdist.ParameterServerStrategy(mode="sync"), of_model, "sgd")


@pytest.mark.long(covered_by="test_beside_all_reduce")
@on_job(2, 2)
def test_clipping_beside_all_reduce(ctx):
    if served():
        return
    for of_model in chosen(CLIPPED, "clipped_accumulation").values():
        train_like_dense(tfdist.MultiWorkerMirroredStrategy(), of_model, "sgd")
    clipped = lambda: tf_keras.optimizers.SGD(0.1, global_clipnorm=0.01)  # noqa: E731
    scaled = lambda: tf_keras.mixed_precision.LossScaleOptimizer(clipped())  # noqa: E731
    for of_tf_keras in chosen({"clipped": clipped, "scaled": scaled}, "scaled").values():
        train_like_dense(tfdist.MultiWorkerMirroredStrategy(), of_tf_keras, "sgd", tf_keras)


@pytest.mark.long("*-global_clipnorm", covered_by="the other cases")
@pytest.mark.parametrize("name", ["adagrad", "global_clipnorm"])
@on_job(1)
def test_tf_keras(ctx, name):
    if served():
        return
    of_tf_keras = tf_keras.optimizers
    of_model = {
        "adagrad": lambda: of_tf_keras.Adagrad(0.1),
        "global_clipnorm": lambda: of_tf_keras.Adagrad(0.1, global_clipnorm=0.01),
    }[name]
    train_like_dense(tfdist.ParameterServerStrategy(), of_model, "adagrad", tf_keras)


@pytest.mark.long("*adagrad", covered_by="the other cases")
@pytest.mark.long("*-loss_scale", covered_by="the other cases")
@pytest.mark.parametrize("name", ["adagrad", "accumulation", "loss_scale"])
@on_job(2, 2)
def test_beside_all_reduce(ctx, name):
    if served():
        return
    of_rows, of_model = OF_ROWS[name] if name in OF_ROWS else ("sgd", OF_MODEL[name])
    strategy = tfdist.MultiWorkerMirroredStrategy()
    model = train_like_dense(strategy, of_model, of_rows)
    assert strategy.num_replicas_in_sync == 2
    assert model.predict(dataset(10, 4), verbose=0).shape == (10, 1)


@pytest.mark.long("*-loss_scale", covered_by="the other cases")
@pytest.mark.parametrize("name", ["sgd", "loss_scale"])
@on_job(2)
def test_tf_keras_beside_all_reduce(ctx, name):
    if served():
        return
    of_model = {
        "sgd": lambda: tf_keras.optimizers.SGD(0.1),
        "loss_scale": lambda: tf_keras.mixed_precision.LossScaleOptimizer(
            tf_keras.optimizers.SGD(0.1), initial_scale=8.0, dynamic_growth_steps=3
        ),
    }[name]
    train_like_dense(tfdist.MultiWorkerMirroredStrategy(), of_model, "sgd", tf_keras)


@on_ranks(1)
def test_without_a_cluster(ctx):
    del os.environ["TF_CONFIG"]
    strategy = tfdist.MultiWorkerMirroredStrategy()
    train_like_dense(strategy, lambda: optimizers.Adagrad(0.1), "adagrad")
