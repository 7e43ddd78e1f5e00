"""The end of the last epoch of data tasks, "async": it waits until each record counts, or fails."""

from __future__ import annotations

import keras
import pytest

import tfdist
from support import ledger
from support.processes.ranks import start_ranks
from support.ps_job import roles
from support.task_job import BATCH, RECORDS, TASK, end, train_async, wait_for_tasks
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.job import process
from tfdist.ps.server import ServerTask

pytestmark = pytest.mark.timeout(120)
LEASE = 1.0
OTHER = "worker 0"  # the name of rank 1, beside the chief
OPTIONS = {"epochs": 1, "lease": LEASE}


def begin(ranks, workers=2):
    for worker in range(workers):
        ranks.wait_for(worker, "paused", timeout=60)


def owners(queue):
    return {one["owner"] for one in queue["pending"]}


@pytest.mark.long(covered_by="test_a_worker_trains_again_what_was_refused_at_the_end")
def test_another_worker_trains_what_comes_back_at_the_end():
    """Both inputs have ended when one worker stalls, and the other one has trained all its own."""
    options = {**OPTIONS, "pauses": [(1,), (1,)], "read_ahead": [1, RECORDS]}
    with start_ranks(train_async, 3, kwargs=options, roles=roles(2)) as ranks:
        begin(ranks, 1)
        ranks.send(1, "begin")
        begin(ranks)
        wait_for_tasks(ranks, 2, lambda queue: not queue["todo"], "all tasks are read")
        ranks.send(0, "continue")
        wait_for_tasks(
            ranks,
            2,
            lambda queue: not queue["todo"] and owners(queue) == {OTHER},
            "only rank 1 has tasks",
        )
        ranks[1].stop()
        wait_for_tasks(
            ranks, 2, lambda queue: OTHER not in owners(queue), "rank 1 has lost its tasks"
        )
        ranks[1].resume()
        ranks.send(1, "continue")
        outcomes = end(ranks, 2)
    assert outcomes[1].result["counts"] == [1] * RECORDS
    assert [outcome.ok for outcome in outcomes] == [True] * 3, outcomes


def test_a_worker_trains_again_what_was_refused_at_the_end():
    """Its input has ended already, with all batches read ahead."""
    options = {**OPTIONS, "pauses": [(3,)], "read_ahead": [RECORDS]}
    with start_ranks(train_async, 2, kwargs=options, roles=roles(1)) as ranks:
        begin(ranks, 1)
        wait_for_tasks(ranks, 1, lambda queue: not queue["todo"], "all tasks are read")
        ranks[0].stop()
        wait_for_tasks(ranks, 1, lambda queue: not queue["pending"], "its leases have expired")
        ranks[0].resume()
        ranks.send(0, "continue")
        outcomes = end(ranks, 1)
    assert outcomes[0].result["counts"] == [1] * RECORDS
    assert outcomes[1].ok, outcomes[1].describe()
    assert "did not count" in outcomes[0].output


def test_a_server_that_is_started_again_while_a_batch_waits(tmp_path):
    """It belongs to no worker then: it is refused, and the next pass trains its records once."""
    last_but_one = RECORDS // BATCH - 1
    options = {**OPTIONS, "pauses": [(last_but_one,)]}
    options["checkpoint_dir"] = str(tmp_path / "snapshots")
    with start_ranks(train_async, 2, kwargs=options, roles=roles(1)) as ranks:
        begin(ranks, 1)
        wait_for_tasks(ranks, 1, lambda queue: not queue["todo"], "all tasks are read")
        ranks[1].kill()
        ranks.restart(1)
        wait_for_tasks(ranks, 1, lambda queue: queue["pending"], "another pass has begun")
        ranks.send(0, "continue")
        outcomes = end(ranks, 1)
    assert outcomes[0].result["counts"] == [1] * RECORDS
    assert "did not count" in outcomes[0].output


def wait_in_vain(ctx):
    """Rank 1 keeps its tasks; the other one says how its `fit` has ended."""
    if Cluster.from_environment().task_type == "ps":
        return ServerTask(Cluster.from_environment(), Settings.from_environment()).serve()
    strategy = tfdist.ParameterServerStrategy(epoch_timeout=0.0)
    with strategy.scope():
        model = ledger.model(RECORDS)
    data = tfdist.data.from_ranges(RECORDS, TASK, epochs=1, lease=LEASE)

    def pause(batch, logs):
        ctx.report("paused")
        ctx.wait_for("continue", timeout=60)

    held = keras.callbacks.LambdaCallback(on_train_batch_end=pause) if ctx.rank else None
    if not ctx.rank:
        ctx.wait_for("continue", timeout=60)
    try:
        model.fit(ledger.batches(data, BATCH), verbose=0, callbacks=[held] if held else [])
    except Exception as error:
        return str(error)


@pytest.mark.long(covered_by="single/data/queue/test_task_queue.py")
def test_a_worker_that_makes_no_progress_ends_the_others_with_its_name():
    env = {"TFDIST_RENDEZVOUS_TIMEOUT": "3"}
    with start_ranks(wait_in_vain, 3, roles=roles(2), env=env) as ranks:
        ranks.wait_for(1, "paused", timeout=60)
        ranks.send(0, "continue")
        (outcome,) = ranks.join(timeout=60, only=[0])
    message = outcome.result
    for part in ("queue 'train': ", " records of task 0 (records ", f"{OTHER} at ", "for 3 s"):
        assert part in message, message


def lose_records(ctx):
    """A loop without a last epoch, which does not wait for rank 1; ps 0 returns its exit code."""
    if Cluster.from_environment().task_type == "ps":
        return ServerTask(Cluster.from_environment(), Settings.from_environment()).serve()
    strategy = tfdist.ParameterServerStrategy()
    with strategy.scope():
        model = ledger.model(RECORDS)
    data = ledger.batches(tfdist.data.from_ranges(RECORDS, TASK, lease=LEASE), BATCH)
    model.get_weights()
    for i, batch in enumerate(strategy.experimental_distribute_dataset(data)):
        with tfdist.data.step():
            model.train_on_batch(*batch)
        if i == 0:
            ctx.report("paused")
            ctx.wait_for("continue", timeout=60)
    process.current.disconnect()


@pytest.mark.long(covered_by="single/data/queue/test_task_queue.py")
def test_a_job_that_loses_records_fails():
    env = {"TFDIST_RENDEZVOUS_TIMEOUT": "4"}
    with start_ranks(lose_records, 3, roles=roles(2), env=env) as ranks:
        begin(ranks)
        ranks.send(0, "continue")
        ranks.join(timeout=60, only=[0])
        ranks[1].kill()
        (outcome,) = ranks.join(timeout=60, only=[2])
    assert outcome.result == 1, outcome.describe()
    assert "dealt out and are not trained, and all workers have left" in outcome.output
