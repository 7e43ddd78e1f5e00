"""Downpour SGD: workers that push every n_push steps and fetch every n_fetch steps."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

import tfdist
from parallel.ps.scripted_loop import ScriptedLoop
from support.processes.ranks import start_ranks
from support.ps_job import on_job, roles, served
from support.task_job import RECORDS, end, train_async
from support.training.known_gradient import hear, tell
from tfdist.errors import TfdistError

pytestmark = pytest.mark.timeout(180)


def pulled_by(optimizer):
    def check(results):
        own = optimizer == "worker"  # its variables change in each step
        chief, worker, _ = results
        # The chief has pushed 1 and 1, 1 and 1, and then sees 2 and 2 of the other as well.
        assert chief[0] == ([0, -1, -2, -3, -8] if own else [0, 0, 0, 0, -8])
        assert chief[1] == -9  # a read pushes what is left
        assert worker == (([0, -2] if own else [0, 0]), -4)

    return check


def push_and_fetch(ctx, optimizer):
    if served():
        return None
    options = {"n_push": 2, "n_fetch": 4, "ps_optimizer": optimizer}
    loop = ScriptedLoop(float(ctx.rank + 1), **options)
    if ctx.rank == 0:
        pulled = [loop.step()]
        tell(ctx, "begun")
        hear(ctx, "pushed")
        pulled += [loop.step() for _ in range(4)]
        return pulled, loop.weight
    hear(ctx, "begun")
    pulled = [loop.step(), loop.step()]
    weight = loop.weight  # after its push
    tell(ctx, "pushed")
    return pulled, weight


@on_job(2, check=pulled_by("server"))
def test_servers_apply_sums_of_gradients(ctx):
    return push_and_fetch(ctx, "server")


@on_job(2, check=pulled_by("worker"))
def test_workers_update_their_own_values_between(ctx):
    return push_and_fetch(ctx, "worker")


@pytest.mark.long(
    covered_by="parallel/data/test_tasks_async.py::test_a_killed_worker_comes_back_to_what_is_left"
)
def test_each_record_counts_once_though_a_worker_is_killed():
    options = {"epochs": 4, "pauses": [(12, 30), (5,)], "n_push": 3, "n_fetch": 3}
    with start_ranks(train_async, 3, kwargs=options, roles=roles(2)) as ranks:
        ranks.wait_for(1, "paused", 5, timeout=60)
        ranks.wait_for(0, "paused", 12, timeout=60)
        ranks[1].kill()  # two of its steps are not pushed
        ranks.send(0, "continue")
        ranks.wait_for(0, "paused", 30, timeout=60)
        ranks.restart(1)
        ranks.wait_for(1, "paused", 5, timeout=60)
        for rank in (0, 1):
            ranks.send(rank, "continue")
        outcomes = end(ranks, 2)
    assert outcomes[0].result["counts"] == [4] * RECORDS


PAIRS = [(i * 7 % 11, 11 + i * 5 % 13) for i in range(40)]


def factorize(ctx):
    """Factorizes a matrix, one update a step, in conflict-free rounds; returns all rows."""
    if served():
        return None
    strategy = tfdist.ParameterServerStrategy()
    with strategy.scope():
        table = tfdist.layers.Embedding(output_dim=4, optimizer="adagrad", name="factors")
        table.build((None, 2))
        optimizer = keras.optimizers.SGD(0.5)
        optimizer.build(table.trainable_variables)

    @tf.function
    def step(pair):
        def replica_step(ids):
            with tf.GradientTape() as tape:
                rows = table(ids[tf.newaxis])
                loss = tf.square(1.0 - tf.reduce_sum(rows[0, 0] * rows[0, 1]))
            optimizer.apply(
                tape.gradient(loss, table.trainable_variables), table.trainable_variables
            )

        strategy.run(replica_step, args=(pair,))

    pairs = tf.constant(PAIRS, tf.int64)
    for one in tfdist.data.cyclades(PAIRS, batch=10, workers=tfdist.size(), seed=4):
        assert one.components >= 2
        for update in one.parts[tfdist.rank()]:
            step(pairs[update])
        strategy.wait_for_workers()
    return table(tf.range(24, dtype=tf.int64), training=False).numpy()


def test_cyclades_equals_the_serial_order_to_the_bit():
    """Two asynchronous workers, and a worker that makes all updates."""
    with start_ranks(factorize, 3, roles=roles(2)) as ranks:
        both = ranks.join(timeout=90)
    with start_ranks(factorize, 2, roles=roles(1)) as ranks:
        one = ranks.join(timeout=60)
    assert not [str(outcome) for outcome in (*both, *one) if outcome.exception]
    chief, worker, alone = both[0].result, both[1].result, one[0].result
    assert chief.tobytes() == worker.tobytes() == alone.tobytes()


@on_job(2)
def test_a_worker_that_does_not_come_is_named(ctx):
    if served():
        return
    strategy = tfdist.ParameterServerStrategy(epoch_timeout=1.0)
    strategy.wait_for_workers()
    if ctx.rank == 0:
        with pytest.raises(TfdistError, match=r"wait_for_workers: .*of 1 s: worker 0 at .*"):
            strategy.wait_for_workers()
        tell(ctx, "named")
    else:
        hear(ctx, "named")
