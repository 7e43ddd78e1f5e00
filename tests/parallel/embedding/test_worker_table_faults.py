"""Workers that hold rows die, or differ from the others."""

from __future__ import annotations

import time

import keras
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import on_ranks, start_ranks
from support.training.embeddings import alone, dataset, model_with, remote_embedding
from tfdist.config.elastic import Elastic


class Steps(keras.callbacks.Callback):
    """Reports the steps of a rank, and fails in one of them."""

    def __init__(self, ctx, fails_at: int | None) -> None:
        super().__init__()
        self._ctx, self._fails_at, self._steps = ctx, fails_at, 0

    def on_train_batch_end(self, batch, logs=None):
        self._steps += 1
        self._ctx.report("step", self._steps)
        if self._steps == self._fails_at:
            raise ArithmeticError("the sum is wrong")


def train(ctx, fails_at=None):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    with strategy.scope():
        layer = remote_embedding("adagrad", placement="workers")
        model = model_with(layer, keras.optimizers.SGD(0.1))
    own_end = fails_at if ctx.rank == 1 else None
    data = dataset(16, 16).repeat()
    model.fit(data, steps_per_epoch=10**6, verbose=0, callbacks=[Steps(ctx, own_end)])


@pytest.mark.parametrize("lost", [0, 1])
def test_a_killed_worker_fails_the_others_at_once(lost):
    with start_ranks(train, 2) as ranks:
        ranks.wait_for(lost, "step", 5, timeout=60)
        killed_at = ranks[lost].kill()
        outcome = ranks.join(30)[1 - lost]
    assert outcome.exception == "UnavailableError", outcome.describe()
    assert outcome.finished_at - killed_at < 10, outcome.describe()
    assert f"worker {lost}" in outcome.message or f"rank {lost}" in outcome.message


def test_the_others_learn_why_a_worker_has_failed():
    with start_ranks(train, 2, kwargs={"fails_at": 5}) as ranks:
        survivor, failed = ranks.join(60)
    assert failed.exception == "ArithmeticError"
    assert survivor.exception == "UnavailableError", survivor.describe()
    assert "the sum is wrong" in survivor.message or "rank 1" in survivor.message


@on_ranks(2)
def test_a_table_with_other_arguments(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    with strategy.scope():
        first = tfdist.EmbeddingTable("t", 2, placement="workers")
        assert first.size() == 0
        ctx.barrier("made")
        other = tfdist.EmbeddingTable("u", 2 + ctx.rank, placement="workers")
        if ctx.rank == 0:
            other.rows  # noqa: B018
        ctx.barrier("first")
        if ctx.rank == 1:
            with pytest.raises(ValueError, match="expected the same arguments in all workers"):
                other.rows  # noqa: B018
        ctx.barrier("refused")


@on_ranks(2)
def test_other_tables_on_one_worker(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    with strategy.scope():
        layer = remote_embedding("sgd", name=f"of_{ctx.rank}", placement="workers")
        expected = "worker 0 makes '.*of_0/remote_rows', worker 1 makes '.*of_1/remote_rows'"
        with pytest.raises(ValueError, match=expected):
            layer(tf.constant([[1, 2, 3]]))


@on_ranks(2)
def test_an_early_finisher_serves_the_others(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    with strategy.scope():
        table = tfdist.EmbeddingTable("t", 2, initializer="zeros")
    ids = tf.range(100, dtype=tf.int64)
    table.upsert(ids, tf.ones([100, 2]))
    ctx.barrier("written")
    if ctx.rank == 0:
        return
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline:
        assert tf.reduce_all(table.fetch(ids) == 1.0)


@on_ranks(2)
def test_elastic_jobs_are_refused(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy(elastic=Elastic(2, 2))
    with strategy.scope():
        layer = remote_embedding("sgd", placement="workers")
        with pytest.raises(ValueError, match="expected a cluster with ps tasks in an elastic job"):
            layer(tf.constant([[1, 2, 3]]))
    ctx.barrier("refused")


@on_ranks(1)
def test_a_strategy_of_servers_is_refused(ctx):
    with alone().scope(), pytest.raises(ValueError, match="expected placement='servers' or None"):
        remote_embedding("sgd", placement="workers")(tf.constant([[1, 2, 3]]))
