"""Data tasks under all-reduce: each rank has records of its own, and all end at the same step."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support import ledger
from support.processes.ranks import on_ranks, start_ranks
from support.task_job import BATCH, RECORDS, train_together
from support.tiers import rounds

pytestmark = pytest.mark.timeout(240)


def even(counters):
    """Whether every record was trained equally often; returns how often one step counts."""
    assert min(counters) == max(counters) > 0, counters
    return counters[0]


@on_ranks(2, 3)
def test_every_record_once_an_epoch(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = ledger.model(RECORDS)
    data = ledger.batches(tfdist.data.from_ranges(RECORDS, 7, shuffle=True, seed=1), BATCH)
    once = []
    for _ in range(2):
        model.fit(data, epochs=2, verbose=0)
        (counters,) = model.get_weights()
        once.append(even(counters.tolist()))
    assert once[1] == 2 * once[0]


@on_ranks(2)
def test_custom_loop(ctx):
    """A loop over a distributed dataset: the ranks' records are disjoint, and none is missing."""
    strategy = tfdist.MultiWorkerMirroredStrategy()
    data = tfdist.data.from_arrays({"i": np.arange(50)}, 6, epochs=2).batch(4)
    distributed = strategy.experimental_distribute_dataset(data)

    @tf.function
    def step(batch):
        counts = strategy.run(lambda b: keras.ops.sum(keras.ops.one_hot(b["i"], 50), 0), (batch,))
        return strategy.reduce("SUM", counts, axis=None)

    total = np.zeros(50)
    for _ in range(3):
        for batch in distributed:
            total += step(batch).numpy()
            tfdist.data.commit(data)
    assert total.tolist() == [2.0] * 50
    tfdist.data.feed.current.report()


KILLS = rounds(1, 10)


def test_a_killed_job_goes_on_from_its_backup(tmp_path):
    # An epoch has eight steps, and each life makes eleven, of which nine are in the backup.
    epochs = 3 + 2 * (KILLS - 1)
    options = {"epochs": epochs, "folder": str(tmp_path / "backup"), "pauses": [(11,), (11,)]}
    with start_ranks(train_together, 2, kwargs=options) as ranks:
        for _ in range(KILLS):
            for rank in (0, 1):
                ranks.wait_for(rank, "paused", 11, timeout=60)
            for rank in (0, 1):
                ranks[rank].kill()
            for rank in (0, 1):
                ranks.restart(rank)
        for rank in (0, 1):
            ranks.wait_for(rank, "paused", 11, timeout=60)
            ranks.send(rank, "continue")
        outcomes = ranks.join(timeout=60)
    for outcome in outcomes:
        assert outcome.ok, outcome.describe()
        # The steps after the backup are rolled back with their records: each counts once an epoch.
        even(outcome.result["counters"])
        assert outcome.result["epochs"][-1] == epochs - 1


def open_other_data(ctx):
    tfdist.MultiWorkerMirroredStrategy()
    data = tfdist.data.from_ranges(50 + ctx.rank, 10)
    if ctx.rank == 0:
        next(iter(tfdist.data.tracked(data)))
        ctx.report("open")
        ctx.wait_for("continue")
        return None
    ctx.wait_for("continue")
    try:
        next(iter(tfdist.data.tracked(data)))
    except Exception as error:
        return str(error)
    finally:
        ctx.report("refused")


def test_workers_with_other_data():
    with start_ranks(open_other_data, 2) as ranks:
        ranks.wait_for(0, "open", timeout=60)
        ranks.send(1, "continue")
        ranks.wait_for(1, "refused", timeout=60)
        ranks.send(0, "continue")
        outcomes = ranks.join(timeout=60)
    message = outcomes[1].result
    for part in ("worker 1 at", "worker 0 at", "records: 51, 50", "two names"):
        assert part in message, message
