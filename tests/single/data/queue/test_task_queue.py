"""The queue of tasks: dealing, leases, deaths, parking, epochs and the end of an epoch."""

from __future__ import annotations

import json
import random

import pytest

from tfdist.data.queue.positions import LeasePositions
from tfdist.data.queue.queue import Ended, EpochPlan, Grant, Returned, TaskQueue, Waiting

LEASE = 10.0


def queue_of(*sizes, epochs=1, shuffle=False, seed=3):
    return TaskQueue(EpochPlan(tuple(sizes), epochs, shuffle, seed, LEASE))


def ask(queue, rank, now=0.0, epoch=0, waits=False, process=None):
    return queue.ask(rank, process or f"process {rank}", epoch, now, waits=waits)


def finish(queue, rank, grant, now=0.0):
    assert queue.commit(grant.lease, f"process {rank}", grant.size, now)


def drain(queue, rank, epoch=0, now=0.0):
    """Trains all that is left of an epoch; returns (epoch, task, first) of the dealt tasks."""
    dealt = []
    while isinstance(grant := ask(queue, rank, now, epoch), Grant):
        dealt.append((grant.epoch, grant.task, grant.first))
        finish(queue, rank, grant, now)
    assert grant == Ended()
    return dealt


def test_deals_in_the_order_of_the_data():
    queue = queue_of(4, 4, 1)
    assert drain(queue, 0) == [(0, 0, 0), (0, 1, 0), (0, 2, 0)]
    assert queue.records == 9 and queue.counts().done == 3 and queue.counts().left == 0


def test_each_epoch_is_shuffled_by_seed_and_number():
    orders = []
    for seed in (1, 1, 2):
        queue = queue_of(*[1] * 50, epochs=2, shuffle=True, seed=seed)
        orders.append([[task for _, task, _ in drain(queue, 0, epoch)] for epoch in (0, 1)])
    assert orders[0] == orders[1] != orders[2]
    assert orders[0][0] != orders[0][1] and orders[0][0] != list(range(50))
    assert all(sorted(order) == list(range(50)) for of_seed in orders for order in of_seed)


def test_a_fast_worker_takes_more():
    queue = queue_of(*[1] * 9)
    slow = ask(queue, 1)
    assert len(drain(queue, 0)) == 8
    finish(queue, 1, slow)
    assert queue.counts().done == 9


def test_an_expired_lease_gives_back_what_was_not_committed():
    queue = queue_of(10)
    grant = ask(queue, 0, now=1.0)
    assert queue.commit(grant.lease, "process 0", 4, now=2.0)
    assert ask(queue, 1, now=10.9) == Ended()
    again = ask(queue, 1, now=11.0)
    assert (again.task, again.first) == (0, 4) and again.lease != grant.lease
    assert [(e.kind, e.item.deaths, e.rank) for e in queue.events] == [("expired", 1, 0)]
    # The former owner was only slow.
    assert not queue.commit(grant.lease, "process 0", 10, now=12.0)
    assert queue.commit(again.lease, "process 1", 10, now=12.0) and queue.records == 10


def test_a_report_renews_all_leases_of_a_process():
    queue = queue_of(1, 1)
    ask(queue, 0, now=0.0), ask(queue, 0, now=5.0)
    queue.renew(0, "process 0", now=9.0)
    queue.expire(now=18.9)
    assert len(queue.leases) == 2
    queue.expire(now=19.0)
    assert not queue.leases and queue.counts().todo == 2


def test_a_new_process_takes_the_place_of_a_dead_one():
    queue = queue_of(4, 4)
    grant = ask(queue, 0, process="first")
    assert queue.commit(grant.lease, "first", 1, 0.0)
    assert ask(queue, 0, process="second").task == 1  # the suspect comes last
    again = ask(queue, 0, process="second")
    assert (again.task, again.first) == (0, 1)
    assert not queue.commit(grant.lease, "first", 4, 0.0)


def test_a_released_task_comes_first_and_is_no_death():
    queue = queue_of(1, 1, 1)
    grant = ask(queue, 0)
    queue.release("process 1", [grant.lease], failed=False)  # not its own
    assert grant.lease in queue.leases
    queue.release("process 0", [grant.lease, 77], failed=False)
    assert drain(queue, 1) == [(0, 0, 0), (0, 1, 0), (0, 2, 0)] and not queue.events


def test_three_deaths_in_a_row_park_a_task():
    queue = queue_of(5, 5, epochs=2)
    for death in range(3):
        grant = ask(queue, 0, process=f"process {death}")
        if death == 0:
            assert queue.commit(grant.lease, "process 0", 2, 0.0)
            finish_other = ask(queue, 1)
            finish(queue, 1, finish_other)
        assert (grant.task, grant.first) == (0, 2 if death else 0)
    assert ask(queue, 0, process="process 3") == Ended()
    assert [e.kind for e in queue.events] == ["died", "died", "parked"]
    assert queue.parked[0].done == 2
    # It stays parked, and the rest continues.
    assert drain(queue, 1, epoch=1) == [(1, 1, 0)]
    assert queue.counts().left == 0 and queue.begin_epoch(1) is None


def test_what_is_lost_together_with_a_parked_task_is_not_told_to_be_parked():
    queue = queue_of(5, 5, epochs=2)
    ask(queue, 0, process="process 0")
    finish(queue, 1, ask(queue, 1))
    for death in (1, 2):
        assert ask(queue, 0, process=f"process {death}").task == 0
    # It reads ahead.
    held = [ask(queue, 0, epoch=1, process="process 2") for _ in range(2)]
    assert [(grant.epoch, grant.task) for grant in held] == [(1, 0), (1, 1)]
    queue.release("process 2", list(queue.leases), failed=True)
    told = [(event.kind, event.item.epoch, event.item.task) for event in queue.events[2:]]
    assert told == [("parked", 0, 0), ("died", 1, 0), ("died", 1, 1)]
    assert list(queue.parked) == [0] and drain(queue, 1, epoch=1) == [(1, 1, 0)]


def test_only_deaths_without_progress_count_in_a_row():
    queue = queue_of(10)
    for death in range(8):
        grant = ask(queue, 0, process=f"process {death}")
        assert queue.commit(grant.lease, f"process {death}", death + 1, 0.0)
    assert not queue.parked and grant.first == 7


def test_a_task_that_kills_does_not_take_others_with_it():
    """Workers that read one task ahead die of task 2; all others are trained."""
    queue = queue_of(*[1] * 6)
    killed = 0
    while not isinstance(grant := ask(queue, 0, process=f"{killed}"), Ended):
        ahead = ask(queue, 0, process=f"{killed}")
        if grant.task == 2:
            killed += 1
            continue
        assert queue.commit(grant.lease, f"{killed}", 1, 0.0)
        if isinstance(ahead, Grant):
            if ahead.task == 2:
                killed += 1
            else:
                assert queue.commit(ahead.lease, f"{killed}", 1, 0.0)
    assert killed == 3 and list(queue.parked) == [2] and queue.records == 5


def test_a_process_that_dies_gets_nothing_more():
    queue = queue_of(4, 4)
    first = ask(queue, 1)
    queue.release("process 1", [first.lease], failed=True)
    assert ask(queue, 1) == Ended()  # its input pipeline asks as long as the process exists
    again = ask(queue, 1, process="its successor")
    assert isinstance(again, Grant) and queue.events[-1].item.deaths == 1


class Pushed(LeasePositions):
    """Positions that move without a report, and outlive their leases."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: dict[int, str] = {}
        self.known: dict[str, int] = {}

    def open(self, lease: int, task: str, trained: int) -> int:
        self.tasks[lease] = task
        return super().open(lease, task, max(trained, self.known.get(task, 0)))

    def close(self, lease: int) -> int:
        self.known[self.tasks[lease]] = trained = super().close(lease)
        return trained

    def forget(self, first: str, last: str) -> None:
        self.known = {task: n for task, n in self.known.items() if not first <= task < last}


def test_a_task_goes_on_where_the_last_push_was():
    positions = Pushed()
    queue = TaskQueue(EpochPlan((4, 4), 1, False, 3, LEASE), 0, positions, "q")
    first = ask(queue, 1)
    positions.advance(first.lease, 3)
    # The report does not know of the last push.
    assert queue.commit(first.lease, "process 1", 0, 0.0) and queue.records == 3
    positions.advance(first.lease, 4)
    second = ask(queue, 0, now=LEASE + 1)
    assert (second.task, second.first) == (1, 0)  # the first one is done, though it has expired
    assert queue.records == 4 and not queue.events
    positions.advance(second.lease, 2)
    third = ask(queue, 1, now=2 * LEASE + 2)
    assert (third.task, third.first) == (1, 2)


def test_an_owner_whose_last_push_came_before_it_knew_has_lost_nothing():
    positions = Pushed()
    queue = TaskQueue(EpochPlan((4, 4), 1, False, 3, LEASE), 0, positions, "q")
    grant = ask(queue, 0)
    positions.advance(grant.lease, 4)
    for _ in range(2):  # the first report ends the task, and the step has not returned yet
        assert queue.commit(grant.lease, "process 0", 0, 0.0)
    assert not queue.commit(grant.lease, "process 1", 0, 0.0)
    assert not queue.leases and queue.records == 4
    queue.forget("process 0", ())
    assert not queue.commit(grant.lease, "process 0", 0, 0.0)
    # Nothing is kept for a process that reports no more.
    finish(queue, 0, ask(queue, 0))
    queue.renew(0, "another process", now=0.0)
    assert not queue._done


def test_positions_may_be_further_than_a_state():
    positions = Pushed()
    plan = EpochPlan((4, 4, 4), 2, False, 3, LEASE)
    queue = TaskQueue(plan, 0, positions, "q")
    first, second = ask(queue, 0), ask(queue, 0)
    state = json.loads(json.dumps(queue.state()))
    positions.advance(first.lease, 4)
    positions.advance(second.lease, 1)
    finish(queue, 0, ask(queue, 0))  # a task that the state knows nothing of
    for lease in (first.lease, second.lease):
        positions.close(lease)

    restored = TaskQueue(plan, 100, positions, "q")
    restored.restore(state, {})
    assert drain(restored, 1) == [(0, 1, 1)] and restored.records == 12
    assert drain(restored, 1, epoch=1) == [(1, 0, 0), (1, 1, 0), (1, 2, 0)]
    restored.state()
    restored.saved()
    assert {task[:12] for task in positions.known} == {"q/0000000001"}

    back = TaskQueue(plan, 200, positions, "q")
    back.restore(state)  # the values go back to it, too
    assert drain(back, 1) == [(0, 0, 0), (0, 1, 0), (0, 2, 0)]


def test_saved_positions_may_be_behind_the_state():
    """Where a push was collected, but its step was not applied before the server was killed."""
    plan = EpochPlan((4, 4, 4, 4), 2, False, 3, LEASE)
    queue = TaskQueue(plan, 0, Pushed(), "a/q")
    finish(queue, 0, ask(queue, 0))
    finish(queue, 0, ask(queue, 0))
    pending = ask(queue, 0)
    queue.commit(pending.lease, "process 0", 3, 0.0)
    state = json.loads(json.dumps(queue.state()))

    saved = {"a/q/0000000000/0000000000": 4, "a/q/0000000000/0000000001": 1}
    saved |= {"a/q/0000000000/0000000002": 2, "a/q/0000000000/0000000003": 1}  # the last: not dealt
    saved |= {"q/0000000000/0000000000": 1}  # of another queue
    restored = TaskQueue(plan, 100, Pushed(), "a/q")
    restored.restore(state, saved)
    assert drain(restored, 1) == [(0, 1, 1), (0, 2, 2), (0, 3, 0)]


def test_the_end_of_an_epoch_waits_for_tasks_that_may_come_back():
    queue = queue_of(1, 1)
    mine, other = ask(queue, 0), ask(queue, 1)
    finish(queue, 0, mine)
    assert ask(queue, 0, waits=True) == Waiting((1,))
    finish(queue, 1, other)
    assert ask(queue, 0, waits=True) == Ended()


def test_it_does_not_wait_for_a_worker_that_has_read_all():
    queue = queue_of(3, 3)
    ask(queue, 0), ask(queue, 1)  # each keeps some records for its last batch
    assert ask(queue, 0, waits=True) == Waiting((1,))
    assert ask(queue, 1, waits=True) == Ended() == ask(queue, 0, waits=True)


def test_it_waits_for_no_longer_than_a_lease_without_progress():
    queue = queue_of(3, 3)
    finish(queue, 0, ask(queue, 0))
    other = ask(queue, 1)
    assert ask(queue, 0, now=9.0, waits=True) == Waiting((1,))
    assert queue.commit(other.lease, "process 1", 1, now=9.5)
    queue.renew(1, "process 1", now=19.0)
    assert ask(queue, 0, now=19.4, waits=True) == Waiting((1,))
    assert ask(queue, 0, now=19.5, waits=True) == Ended()


def at_end(queue, rank, now=0.0, idle=False, waits=True, epoch=0):
    return queue.end(rank, f"process {rank}", epoch, now, idle=idle, waits=waits)


def test_the_last_epoch_waits_for_a_worker_that_makes_no_progress():
    queue = queue_of(3, 3)
    finish(queue, 0, ask(queue, 0))
    other = ask(queue, 1)
    for now in (9.0, 18.0, 27.0):
        queue.renew(1, "process 1", now=now)
        assert at_end(queue, 0, now) == Waiting((1,))
        assert at_end(queue, 0, now, waits=False) == Ended()  # in "sync"
    assert at_end(queue, 0, now=37.0) == Returned()  # the lease has expired
    again = ask(queue, 0, now=37.0)
    assert at_end(queue, 1, now=37.0) == Waiting((0,)) == at_end(queue, 0, now=37.0)
    assert again.task == other.task and queue.lost()
    finish(queue, 0, again)
    assert at_end(queue, 0) == at_end(queue, 1) == Ended() and not queue.lost()


def test_own_tasks_come_before_those_that_have_come_back():
    queue = queue_of(3, 3)
    own, other = ask(queue, 0), ask(queue, 1)
    queue.release("process 1", [other.lease], failed=False, refused=True)
    assert at_end(queue, 0) == Waiting((0,))
    finish(queue, 0, own)
    assert at_end(queue, 0) == Returned()


def test_what_a_worker_leaves_out_is_not_waited_for():
    queue = queue_of(3, 3, epochs=2)
    mine = ask(queue, 0)
    assert queue.commit(mine.lease, "process 0", 2, 0.0)  # a batch of 2, and the rest is dropped
    finish(queue, 1, ask(queue, 1))
    assert at_end(queue, 1) == Waiting((0,))
    assert at_end(queue, 0, idle=True) == Ended() == at_end(queue, 1) and not queue.lost()
    assert ask(queue, 1) == Ended()
    state = json.loads(json.dumps(queue.state()))
    restored = queue_of(3, 3, epochs=2)
    restored.restore(state)
    for one in (queue, restored):
        assert ask(one, 1) == Ended() and not one.lost()
        assert drain(one, 1, epoch=1) == [(0, 0, 2), (1, 0, 0), (1, 1, 0)]


def test_lost_are_tasks_of_dealt_epochs_that_nobody_has_given_back():
    queue = queue_of(2, 2, 2, epochs=2)
    first = ask(queue, 0)
    queue.release("process 0", [first.lease], failed=True)
    assert not queue.lost()  # the training may end within the epoch
    drain(queue, 1)
    kept, given = ask(queue, 1, epoch=1), ask(queue, 1, epoch=1)
    ask(queue, 1, epoch=1)
    queue.release("process 1", [given.lease], failed=False)
    assert [item.task for item in queue.lost()] == [kept.task, 2]


def test_what_comes_back_after_the_end_is_dealt_in_the_next_epoch():
    queue = queue_of(1, 1, epochs=2)
    ask(queue, 1)
    assert drain(queue, 0) == [(0, 1, 0)]
    queue.release("process 1", list(queue.leases), failed=False)
    assert queue.begin_epoch(0) == 1
    assert drain(queue, 0, epoch=1) == [(0, 0, 0), (1, 0, 0), (1, 1, 0)]


def test_a_worker_behind_gets_no_task_of_a_later_epoch():
    queue = queue_of(1, epochs=3)
    drain(queue, 0), drain(queue, 0, epoch=1)
    assert ask(queue, 1, epoch=0) == Ended()
    assert queue.begin_epoch(-1) == 1  # a worker that is started again


def test_a_training_begins_where_the_job_is():
    queue = queue_of(1, epochs=5)
    assert queue.begin_fit(1, -1) == 0
    drain(queue, 0), drain(queue, 0, epoch=1)
    assert queue.begin_fit(1, -1) == 0 and queue.begin_epoch(-1) == 1  # started again
    assert queue.begin_fit(2, 1) == 2 and queue.begin_epoch(1) == 2


def test_a_far_epoch_of_parked_tasks_takes_no_time():
    queue = queue_of(1, epochs=None)
    for process in "abc":
        grant = ask(queue, 0, process=process)
        queue.release(process, [grant.lease], failed=True)
    assert queue.parked and ask(queue, 1, epoch=2**31 - 1) == Ended()


def test_the_last_epoch_ends_the_queue():
    queue = queue_of(1, 1, epochs=2)
    drain(queue, 0), drain(queue, 0, epoch=1)
    assert queue.begin_epoch(1) is None
    queue = queue_of(1)
    ask(queue, 1), ask(queue, 0)
    queue.release("process 1", list(queue.leases), failed=True)
    assert queue.begin_epoch(0) == 0  # the returned task is still to be trained
    assert drain(queue, 0) == [(0, 0, 0)] and queue.begin_epoch(0) is None


def test_a_queue_without_a_state_begins_in_the_epoch_of_its_workers():
    """A master that was started again without a checkpoint repeats this epoch, and no other."""
    queue = queue_of(1, 1, epochs=5)
    assert drain(queue, 0, epoch=3) == [(3, 0, 0), (3, 1, 0)] and queue.begin_epoch(-1) == 3


def test_endless_epochs():
    queue = queue_of(1, epochs=None)
    for epoch in range(5):
        assert queue.begin_epoch(epoch - 1) == epoch
        assert drain(queue, 0, epoch) == [(epoch, 0, 0)]


def test_a_state_brings_back_what_was_not_committed():
    queue = queue_of(4, 4, 4, 4, epochs=2, shuffle=True)
    drain(queue, 0)
    first, second = ask(queue, 0, epoch=1), ask(queue, 1, epoch=1)
    finish(queue, 0, first)
    assert queue.commit(second.lease, "process 1", 3, 0.0)
    state = json.loads(json.dumps(queue.state()))
    other = queue_of(4, 4, 4, 4, epochs=2, shuffle=True)
    other.restore(state)
    assert other.epoch == 1 and other.records == queue.records == 23 and not other.leases
    assert not other.commit(second.lease, "process 1", 4, 0.0)
    assert drain(other, 1, epoch=1)[0] == (1, second.task, 3)
    assert other.records == 32 and other.begin_epoch(1) is None


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"epoch": -1},
        {"position": 3},
        {"returned": [[0, 2, 0, 0]]},
        {"returned": [[0, 1, 9, 0]]},
        {"returned": [[0, "1", 0, 0]]},
        {"parked": [7]},
        {"fits": None},
        {"records": True},
    ],
)
def test_a_wrong_state_is_refused(change):
    queue = queue_of(4, 4)
    with pytest.raises(ValueError):
        queue.restore({**queue.state(), **change})


@pytest.mark.parametrize("seed", range(20))
def test_every_record_of_every_epoch_is_committed_once(seed):
    """Workers of random speed die, stall, return, and commit in pieces; the ledger is exact."""
    random_ = random.Random(seed)
    sizes = [random_.randint(1, 7) for _ in range(12)]
    queue = queue_of(*sizes, epochs=3, shuffle=bool(seed % 2))
    ledger = {(e, t, r): 0 for e in range(3) for t, size in enumerate(sizes) for r in range(size)}
    workers = {
        rank: {"process": f"{rank}", "ended": -1, "epoch": None, "held": []} for rank in range(3)
    }
    now, births = 0.0, 3
    for _ in range(20_000):
        now += random_.random()
        rank = random_.randrange(3)
        me = workers[rank]
        if me["epoch"] is None:
            me["epoch"] = queue.begin_epoch(me["ended"])
            if me["epoch"] is None:
                if not queue.leases and all(w["epoch"] is None for w in workers.values()):
                    break
                continue
        dice = random_.random()
        if dice < 0.02:
            births += 1
            workers[rank] = {"process": f"{births}", "ended": -1, "epoch": None, "held": []}
        elif dice < 0.03:
            now += 1.5 * LEASE  # all others keep silent, too
        elif dice < 0.5 or not me["held"]:
            found = queue.ask(rank, me["process"], me["epoch"], now, waits=True)
            if isinstance(found, Grant):
                me["held"].append([found, found.first])
            elif found == Ended() and not me["held"]:
                is_last = me["epoch"] == 2
                if is_last and queue.end(rank, me["process"], 2, now, idle=True, waits=True) != (
                    Ended()
                ):
                    continue
                assert not is_last or not queue.lost(), "it ends before all is trained"
                me["ended"], me["epoch"] = max(me["ended"], me["epoch"]), None
        if me["held"] and random_.random() < 0.7:
            grant, at = me["held"][0]
            upto = random_.randint(at + 1, grant.size)
            if queue.commit(grant.lease, me["process"], upto, now):
                for record in range(at, upto):
                    ledger[grant.epoch, grant.task, record] += 1
                me["held"][0][1] = upto
            if upto == grant.size or grant.lease not in queue.leases:
                me["held"].pop(0)
    else:
        pytest.fail(f"not at an end: {queue.counts()}")
    parked = {(item.epoch, item.task) for item in queue.parked.values()}
    assert all(count <= 1 for count in ledger.values())
    missing = {(e, t) for (e, t, _), count in ledger.items() if not count}
    assert all(t in queue.parked for _, t in missing), (missing, parked)
    assert queue.records == sum(ledger.values())
