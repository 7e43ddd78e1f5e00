"""Rows that are written, removed and read by id, apart from training."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import on_ranks, start_ranks
from support.ps_job import meet, on_job, roles, served
from support.training.embeddings import alone, held
from tfdist import ops


@on_ranks(1)
def test_upsert_remove_and_fetch(ctx):
    strategy = alone()
    with strategy.scope():
        names = tfdist.EmbeddingTable("names", 2, optimizer="adagrad", initializer="ones")
    assert names.size() == 0
    names.upsert(["ann", "bob"], [[1, 2], [3, 4]])
    names.upsert([["bob"], ["cid"]], np.array([[[5, 6]], [[7, 8]]]))
    assert names.size() == 3 == held(names)["rows"]
    assert names.contains([["ann", "dan"]]).numpy().tolist() == [[True, False]]
    rows = names.fetch(["bob", "dan", "ann"])
    assert rows.numpy().tolist() == [[5, 6], [1, 1], [1, 2]]
    assert names.fetch(["dan", "ann"], default=-1).numpy().tolist() == [[-1, -1], [1, 2]]
    assert names.fetch(["dan"], default=[8, 9]).numpy().tolist() == [[8, 9]]
    assert names.size() == 3
    names.remove(["ann", "eve"])
    assert names.contains(["ann", "bob"]).numpy().tolist() == [False, True]
    names.clear()
    assert names.size() == 0
    assert len(names.fetch()[0]) == 0

    with pytest.raises(ValueError, match=r"'names': expected rows of shape \(2, 2\)"):
        names.upsert(["ann", "bob"], [[1, 2, 3], [1, 2, 3]])
    with pytest.raises(TypeError, match="expected integers or strings"):
        names.remove([1.5])
    with strategy.scope():
        few = tfdist.EmbeddingTable("few", 1, input_dim=5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="'few': expected ids from 0 to 4"):
        few.upsert([5], [[0.0]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="'few': expected ids from 0 to 4"):
        few.contains([-1])


@on_ranks(1)
def test_in_functions_and_in_training(ctx):
    strategy = alone()
    with strategy.scope():
        table = tfdist.EmbeddingTable(
            "t", 1, optimizer="sgd", initializer="zeros", cache_rows=10, cache_steps=100
        )
        optimizer = keras.optimizers.SGD(1.0)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, None])])
    def write_and_read(ids, rows):
        before = ops.embedding_lookup(table, ids, training=False)
        table.upsert(ids, rows)
        written = table.fetch(ids)
        size = table.size()
        table.remove(ids[:1])
        return before, written, size, table.contains(ids)

    before, written, size, found = write_and_read([3, 4], [[5.0], [6.0]])
    assert before.numpy().tolist() == [[0], [0]]
    assert written.numpy().tolist() == [[5], [6]]
    assert size == 2
    assert found.numpy().tolist() == [False, True]
    with pytest.raises(tf.errors.InvalidArgumentError, match="'t': expected rows of 1 numbers"):
        write_and_read([3, 4], [[5.0, 1.0], [6.0, 1.0]])

    @tf.function
    def step(ids):
        def of_replica():
            with tf.GradientTape() as tape:
                rows = ops.embedding_lookup(table, ids)
                loss = tf.reduce_sum(rows)
            optimizer.apply_gradients([(tape.gradient(loss, table.rows), table.rows)])
            return rows

        return strategy.run(of_replica)

    ids = tf.constant([4, 9], tf.int64)
    assert step(ids).numpy().tolist() == [[6], [0]]
    assert step(ids).numpy().tolist() == [[6], [0]]  # cached
    table.upsert([9], [[50.0]])
    assert step(ids).numpy().tolist() == [[4], [50]]
    assert table.fetch([4, 9]).numpy().tolist() == [[3], [49]]

    # In a step too lookups and edits come in the order of the program.
    with strategy.scope():
        other = tfdist.EmbeddingTable("other", 1, initializer="ones")

    @tf.function
    def count():
        def of_replica():
            rows = ops.embedding_lookup(other, ids)
            other.upsert(ids, rows + 1)
            written = ops.embedding_lookup(other, ids)
            other.remove(ids)
            return rows, written, ops.embedding_lookup(other, ids), other.size()

        return strategy.run(of_replica)

    for _ in range(3):
        first, written, anew, size = count()
        assert [x.numpy().tolist() for x in (first, written, anew)] == [
            [[1], [1]],
            [[2], [2]],
            [[1], [1]],
        ]
        assert size == 2


@pytest.mark.parametrize("mode", ["async", "sync", "all_reduce"])
@on_job(2, 2)
def test_two_workers_and_two_servers(ctx, mode):
    if served():
        return
    if mode == "all_reduce":
        strategy = tfdist.MultiWorkerMirroredStrategy()
    else:
        strategy = tfdist.ParameterServerStrategy(mode=mode)
    with strategy.scope():
        table = tfdist.EmbeddingTable("t", 2, initializer="zeros")
    rank = ctx.rank
    ids = np.arange(100) + 100 * rank
    table.upsert(ids, np.stack([ids, ids], 1))
    meet(ctx, "written")
    assert table.size() == 200
    rows = table.fetch(np.arange(200))
    np.testing.assert_array_equal(rows[:, 0], np.arange(200))
    meet(ctx, "read")
    table.remove(ids[::2])
    meet(ctx, "removed")
    assert table.size() == 100
    assert not table.contains(np.arange(0, 200, 2)).numpy().any()


def make_table(ctx, arguments, folder):
    """Returns the rows of a table that a checkpoint may have, or why there are none."""
    if served():
        return None
    strategy = tfdist.ParameterServerStrategy(checkpoint_dir=folder)
    results = []
    for each in arguments:
        with strategy.scope():
            table = tfdist.EmbeddingTable("t", 2, **each)
        try:
            found, rows = table.fetch()
            results.append(dict(zip(found.tolist(), rows.tolist(), strict=True)))
        except ValueError as error:
            results.append(str(error))
    if results == [{}]:
        table.upsert([7, 8], [[1, 2], [3, 4]])
    return results


def test_a_checkpoint_of_another_optimizer(tmp_path):
    folder = str(tmp_path / "snapshots")

    def run(*arguments):
        options = {"arguments": arguments, "folder": folder}
        env = {"TFDIST_CHECKPOINT_DIR": folder}
        with start_ranks(make_table, 2, kwargs=options, roles=roles(1), env=env) as ranks:
            outcomes = ranks.join(timeout=60)
        assert outcomes[0].ok, outcomes[0]
        return outcomes[0].result

    assert run({}) == [{}]
    refusal, rows = run({"optimizer": "adam"}, {"optimizer": "adam", "reset_slots": True})
    assert "the slots accumulator (2); expected momentum (2), velocity (2)" in refusal
    assert "with reset_slots=True its rows keep their values" in refusal
    assert rows == {7: [1, 2], 8: [3, 4]}
