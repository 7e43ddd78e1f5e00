"""Tables whose rows are dealt over the workers of a job without parameter servers."""

from __future__ import annotations

import json
import os

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tfdist
from support.processes.ranks import on_ranks
from support.tiers import chosen
from support.training import models
from support.training.embeddings import (
    PER_EXAMPLE,
    dataset,
    examples,
    model_with,
    remote_embedding,
    rows_of,
    train_like_dense,
)
from tfdist.job import process

optimizers = keras.optimizers
# Of the table and of the model, where a dense variable makes the same steps.
LIKE_DENSE = {
    "sgd": ("sgd", lambda: optimizers.SGD(0.1)),
    "adagrad": ("adagrad", lambda: optimizers.Adagrad(0.1)),
    "adam": ("exact_adam", lambda: optimizers.Adam(0.01)),
}
OF_MODEL = {
    "accumulation": lambda: optimizers.SGD(0.1, gradient_accumulation_steps=3),
    "global_clipnorm": lambda: optimizers.SGD(0.1, global_clipnorm=0.01),
    "loss_scale": lambda: optimizers.LossScaleOptimizer(
        optimizers.SGD(0.1), initial_scale=8.0, dynamic_growth_steps=3
    ),
}
OF_ROWS = (
    *("sgd", "adagrad", "rowwise_adagrad", "rmsprop", "adam", "exact_adam", "adamw", "adamax"),
    *("nadam", "adadelta", "adafactor", "lamb", "lion", "ftrl", "group_ftrl"),
)
# Ten steps an epoch, of which the last has one row: all workers but one have none.
ROWS, BATCH = 145, 16
EXACT = models.EXACT


def job_of_first(ctx, workers: int) -> bool:
    """Makes a job of the first ranks; the last one trains alone. Returns whether this one does."""
    if ctx.rank >= workers:
        del os.environ["TF_CONFIG"]
        return True
    config = json.loads(os.environ["TF_CONFIG"])
    config["cluster"]["worker"] = config["cluster"]["worker"][:workers]
    os.environ["TF_CONFIG"] = json.dumps(config)
    return False


@pytest.mark.long("*-adagrad", covered_by="the other cases")
@pytest.mark.parametrize("name", LIKE_DENSE)
@on_ranks(1, 2, 3)
def test_equals_one_process(ctx, name):
    of_rows, of_model = LIKE_DENSE[name]
    strategy = tfdist.MultiWorkerMirroredStrategy()
    train_like_dense(
        strategy, of_model, of_rows, rows=ROWS, batch=BATCH, tolerance=EXACT, placement="workers"
    )


@pytest.mark.long("*-accumulation", "*-loss_scale", covered_by="the other cases")
@pytest.mark.parametrize("name", OF_MODEL)
@on_ranks(2)
def test_of_model(ctx, name):
    train_like_dense(tfdist.MultiWorkerMirroredStrategy(), OF_MODEL[name], "sgd")


@on_ranks(2)
def test_tf_keras(ctx):
    of_model = lambda: tf_keras.optimizers.SGD(0.1)  # noqa: E731
    strategy = tfdist.MultiWorkerMirroredStrategy()
    train_like_dense(strategy, of_model, "sgd", tf_keras, placement="workers")


def _like_alone(results):
    *of_job, alone = results
    for name, rows in alone.items():
        for of_worker in of_job:
            np.testing.assert_allclose(of_worker[name], rows, 0, EXACT, err_msg=name)


@on_ranks(3, timeout=240.0, check=_like_alone)
def test_every_optimizer_equals_one_process(ctx):
    """The process alone has the same store, whose optimizers the tests of servers compare."""
    job_of_first(ctx, 2)
    strategy = tfdist.MultiWorkerMirroredStrategy()
    found = {}
    for name in chosen({name: name for name in OF_ROWS}, "adam", "rowwise_adagrad", "lamb", "ftrl"):
        with strategy.scope():
            layer = remote_embedding(name, name=f"by_{name}")
            model = model_with(layer, optimizers.SGD(0.1))
        model.fit(dataset(ROWS, BATCH), epochs=2, verbose=0)
        found[name] = rows_of(layer)
        assert np.abs(found[name] - 0.3).max() > 1e-3
    return found


def _cut_evenly(results):
    held = np.array(results)
    assert held.sum() == 3000
    assert held.min() > 0.9 * 3000 / len(results) and held.max() < 1.1 * 3000 / len(results)


@on_ranks(2, 3, check=_cut_evenly)
def test_each_worker_holds_its_share(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    with strategy.scope():
        table = tfdist.EmbeddingTable("users", 4, placement="workers")
    ids = np.arange(3000)
    if ctx.rank == 0:
        table.upsert(ids, np.stack([ids] * 4, 1))
    ctx.barrier("written")
    np.testing.assert_array_equal(table.fetch(ids)[:, 0], ids)
    assert table.size() == 3000
    readings = process.current.readings()
    ctx.barrier("read")
    return readings[ctx.rank]["tables"]["users"]["rows"]


@on_ranks(2, 3)
def test_bytes_of_a_step(ctx):
    """Each row and each gradient of a batch travels once, with its id, to or from its owner."""
    width, batch = 16, 400
    strategy = tfdist.MultiWorkerMirroredStrategy()
    with strategy.scope():
        table = tfdist.EmbeddingTable("users", width, optimizer="sgd")
        optimizer = optimizers.SGD(0.1)
    drawn = np.random.default_rng(ctx.rank).zipf(1.2, (10, batch)) % 5000

    @tf.function
    def step(ids):
        def of_replica(ids):
            with tf.GradientTape() as tape:
                loss = tf.nn.l2_loss(tfdist.ops.embedding_lookup(table, ids) - 1.0)
            optimizer.apply_gradients([(tape.gradient(loss, table.rows), table.rows)])

        strategy.run(of_replica, args=(ids,))

    step(tf.constant(drawn[0]))
    client = process.current.ps_worker.client

    def of_others() -> int:
        client.flush(10.0)
        traffic = [sum(both) for both in client.traffic().values()]
        return sum(traffic) - traffic[ctx.rank]

    before = of_others()
    for ids in drawn[1:]:
        step(tf.constant(ids))
    moved = of_others() - before
    unique = sum(len(np.unique(ids)) for ids in drawn[1:])
    expected = unique * (2 * 8 + 2 * 4 * width) * (ctx.size - 1) / ctx.size
    assert 0.9 * expected < moved < 1.1 * expected, (moved, expected)


@on_ranks(2)
def test_evaluate_and_predict(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    with strategy.scope():
        layer = remote_embedding("adagrad", placement="workers")
        model = model_with(layer, optimizers.SGD(0.1))
    model.fit(dataset(ROWS, BATCH), verbose=0)
    ids, targets = examples(ROWS)
    size = layer.table.size()
    predicted = model.predict(ids, batch_size=BATCH, verbose=0)
    kernel, bias = model.get_weights()[1:]
    expected = rows_of(layer, ids.ravel()).reshape(ROWS, -1) @ kernel + bias
    np.testing.assert_allclose(predicted, expected, 0, EXACT)
    loss = model.evaluate(dataset(ROWS, BATCH), verbose=0)
    np.testing.assert_allclose(loss, np.mean((expected - targets) ** 2), rtol=1e-5)
    model.predict(np.full((4, PER_EXAMPLE), 10**12), verbose=0)
    assert layer.table.size() == size


@on_ranks(2)
def test_rows_that_expire(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    with strategy.scope():
        table = tfdist.EmbeddingTable("users", 2, max_rows=100)
    if ctx.rank == 0:
        table.upsert(np.arange(1000), np.ones((1000, 2)))
    ctx.barrier("written")
    assert 200 <= table.size() <= 230


@on_ranks(2)
def test_other_placements_are_refused(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    with pytest.raises(ValueError, match=r"'servers', 'workers' or None, received 'host'"):
        tfdist.layers.Embedding(placement="host")
    with strategy.scope():
        with pytest.raises(ValueError, match=r"the cluster has no ps tasks"):
            tfdist.layers.Embedding(None, 2, placement="servers")(tf.constant([1]))
        layer = tfdist.layers.Embedding(None, 2, placement="workers")
    assert "placement" not in layer.get_config()
    ctx.barrier("refused")
