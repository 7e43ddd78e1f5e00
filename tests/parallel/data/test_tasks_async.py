"""Data tasks with parameter servers, "async": workers and servers die, stall and come back.

The weights are a ledger of how often each record was trained: the push of a step is its commit.
"""

from __future__ import annotations

import re

import pytest

from support.processes.ranks import start_ranks
from support.ps_job import roles
from support.task_job import BATCH, RECORDS, TASK, end, train_async, wait_for_tasks
from support.training.known_gradient import checkpoint

pytestmark = pytest.mark.timeout(240)


def counts_of(outcomes, worker=0):
    return outcomes[worker].result["counts"]


def begin(ranks):
    """Waits until both workers have trained a batch: neither can take all tasks before."""
    for worker in (0, 1):
        ranks.wait_for(worker, "paused", 1, timeout=60)


def has_all_but_others(tasks, epoch):
    """Whether everything is dealt, and only rank 1, beside the chief, has tasks."""
    owners = {one["owner"] for one in tasks["pending"]}
    return tasks["epoch"] == epoch and not tasks["todo"] and owners == {"worker 0"}


def test_two_workers_share_each_epoch():
    options = {"epochs": 3, "pauses": [(1,), (1,)], "slowness": 0.01, "lease": 60.0}
    with start_ranks(train_async, 3, kwargs=options, roles=roles(2)) as ranks:
        begin(ranks)
        for rank in (0, 1):
            ranks.send(rank, "continue")
        outcomes = end(ranks, 2)
    results = [outcome.result for outcome in outcomes[:2]]
    assert results[0]["counts"] == [3] * RECORDS
    assert [result["epochs"] for result in results] == [[0, 1, 2]] * 2
    assert all(result["batches"] > 3 for result in results)
    # A push may end a task before its worker knows: that is no lost task.
    assert not any("belong to others" in outcome.output for outcome in outcomes)


def test_a_fast_worker_takes_more():
    options = {"epochs": 1, "pauses": [(1,), (1,)], "lease": 8.0}
    with start_ranks(train_async, 3, kwargs=options, roles=roles(2)) as ranks:
        begin(ranks)
        ranks.send(0, "continue")
        wait_for_tasks(
            ranks, 2, lambda tasks: has_all_but_others(tasks, epoch=0), "only rank 1 has tasks"
        )
        ranks.send(1, "continue")
        outcomes = end(ranks, 2)
    assert counts_of(outcomes, 1) == [1] * RECORDS
    assert outcomes[0].result["batches"] >= (RECORDS - 2 * TASK) // BATCH


@pytest.mark.long("endless", covered_by="the other cases")
@pytest.mark.parametrize("explicit", [True, False], ids=["with epochs", "endless"])
def test_a_killed_worker_comes_back_to_what_is_left(explicit):
    options = {"epochs": 4, "pauses": [(12, 30), (6,)], "explicit": explicit}
    with start_ranks(train_async, 3, kwargs=options, roles=roles(2)) as ranks:
        ranks.wait_for(1, "paused", 6, timeout=60)
        ranks.wait_for(0, "paused", 12, timeout=60)
        ranks[1].kill()
        ranks.send(0, "continue")
        # It also trains the other one's records, and continues with the next epoch.
        ranks.wait_for(0, "paused", 30, timeout=60)
        ranks.restart(1)
        ranks.wait_for(1, "paused", 6, timeout=60)
        for rank in (0, 1):
            ranks.send(rank, "continue")
        outcomes = end(ranks, 2)
    assert counts_of(outcomes) == [4] * RECORDS
    # The new process does not begin with the first epoch.
    assert outcomes[1].result["epochs"][0] > 0 and outcomes[1].result["epochs"][-1] == 3


def test_a_worker_that_stalls_loses_its_tasks():
    # The other one needs longer than the lease.
    options = {"epochs": 2, "pauses": [(1,), (1,)], "lease": 1.0, "slowness": 0.1}
    with start_ranks(train_async, 3, kwargs=options, roles=roles(2)) as ranks:
        begin(ranks)
        ranks[1].stop()
        ranks.send(0, "continue")
        ranks.wait_for(0, "trained", timeout=60)
        ranks[1].resume()
        ranks.send(1, "continue")
        outcomes = end(ranks, 2)
    assert counts_of(outcomes, 1) == [2] * RECORDS
    assert "belong to others by now did not count" in outcomes[1].output
    assert "which was silent for a whole lease" in outcomes[2].output


@pytest.mark.long(covered_by="test_a_worker_that_stalls_loses_its_tasks")
def test_a_step_that_is_longer_than_the_lease_loses_nothing():
    # The other one ends its first epoch meanwhile: it waits for a lease without any progress.
    options = {"epochs": 2, "pauses": [(1,), (1,)], "lease": 3.0, "slowness": 0.1}
    with start_ranks(train_async, 3, kwargs=options, roles=roles(2)) as ranks:
        begin(ranks)
        ranks.send(0, "continue")
        wait_for_tasks(
            ranks, 2, lambda tasks: has_all_but_others(tasks, epoch=1), "only rank 1 has tasks"
        )
        ranks.send(1, "continue")
        outcomes = end(ranks, 2)
    assert counts_of(outcomes, 1) == [2] * RECORDS
    # It has renewed its leases during the step.
    assert "which was silent for a whole lease" not in outcomes[2].output
    assert "did not count" not in outcomes[1].output


def test_a_task_that_kills_three_workers_is_parked_and_named():
    options = {"epochs": 1, "pauses": [(), ()], "poison": 33}
    with start_ranks(train_async, 2, kwargs=options, roles=roles(1)) as ranks:
        for _ in range(3):
            ranks.join(timeout=60, only=[0])
            ranks.restart(0)
        outcomes = end(ranks, 1)
    counts = counts_of(outcomes)
    # The task of the record has the numbers 32 to 39; all others are trained.
    assert all(counts[record] == 1 for record in range(RECORDS) if record // TASK != 33 // TASK)
    assert counts[33] == 0
    log = outcomes[1].output
    name = r"task 4 \(records 32 to 39(, 4 of them trained)?\) is parked"
    assert re.search(f"{name}: 3 workers in a row have died", log)
    assert re.search(f"ps 0: queue 'train': {name}", log)  # at the end, once more


@pytest.mark.parametrize("with_rows", [False, True], ids=["dense", "and rows"])
def test_a_server_that_is_started_again_goes_on_from_its_snapshot(tmp_path, with_rows):
    folder = str(tmp_path / "snapshots")
    options = {"epochs": 2, "pauses": [(5, 9), (5, 9)], "checkpoint_dir": folder}
    options["with_rows"] = with_rows
    with start_ranks(train_async, 3, kwargs=options, roles=roles(2)) as ranks:
        for worker in (0, 1):
            ranks.wait_for(worker, "paused", 5, timeout=60)
        checkpoint(ranks, 0, 1)
        for worker in (0, 1):
            ranks.send(worker, "continue")
        for worker in (0, 1):
            ranks.wait_for(worker, "paused", 9, timeout=60)
        ranks[2].kill()
        ranks.restart(2)
        for worker in (0, 1):
            ranks.send(worker, "continue")
        outcomes = end(ranks, 2)
    # The log has the records trained after the snapshot.
    assert counts_of(outcomes) == [2] * RECORDS
    assert not with_rows or outcomes[0].result["rows"] == [2] * RECORDS
    assert "continues in epoch 1 from a checkpoint" in outcomes[2].output


@pytest.mark.long(
    covered_by="test_two_workers_share_each_epoch, parallel/data/test_tasks_together.py"
)
def test_ssp_and_sync_end_their_epochs(tmp_path):
    for mode in ({"mode": "ssp", "staleness": 2}, {"mode": "sync"}):
        options = {"epochs": 2, "pauses": [(), ()], "lease": 60.0, "worker_timeout": 5.0, **mode}
        with start_ranks(
            train_async, 3, kwargs=options, tmp_path=tmp_path, roles=roles(2)
        ) as ranks:
            outcomes = end(ranks, 2, tmp_path)
        assert counts_of(outcomes) == [2] * RECORDS
