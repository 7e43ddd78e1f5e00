"""The rounds at the end of an epoch: expected workers, and answers."""

from __future__ import annotations

import json
import threading
from concurrent import futures

import numpy as np
import pytest

from tfdist.control.held_calls import ClientContext
from tfdist.ps import step_waits
from tfdist.ps.epochs import messages, metric_states
from tfdist.ps.epochs.metric_states import Field, MetricStates, StateError
from tfdist.ps.epochs.rounds import END, TRAINING, VALIDATION, EpochRounds, Key
from tfdist.ps.epochs.service import EpochService

TIMEOUT = 10.0


def state(number):
    return MetricStates.of([np.array([float(number)])], ["sum"])


class Job:
    """The rounds of some connected workers, and a clock."""

    def __init__(self, workers):
        self.now = 0.0
        self.waiting = set()  # pairs: a step's worker, and the worker that it waits for
        self.rounds = EpochRounds(workers, TIMEOUT, self.now)
        for rank in range(workers):
            self.rounds.attach(rank, f"process {rank}")
            self.rounds.record("came", rank)

    def post(self, rank, *key, stop=False, process=None):
        """A worker posts 10 to the power of its rank; returns its answer, or None."""
        posted = self.rounds.post(
            Key(*key), rank, process or f"process {rank}", state(10**rank), stop, self.now
        )
        return posted or self.answer(rank, *key)

    def answer(self, rank, *key):
        waits = [0] * len(self.rounds._workers)
        for worker, other in self.waiting:
            waits[worker] |= 1 << other
        self.rounds.update_waits(waits, self.now)
        self.rounds.settle(self.now)
        return self.rounds.answer(Key(*key), rank)


def total(answer):
    return float(answer.state.arrays()[0][0])


def all_post(job, *key, stop=None):
    """Posts for all workers; returns the answer, which is the same for all."""
    ranks = range(len(job.rounds._workers))
    answers = [job.post(rank, *key, stop=rank == stop) for rank in ranks]
    assert answers[:-1] == [None] * (len(ranks) - 1)
    assert all(job.answer(rank, *key) == answers[-1] for rank in ranks)
    return answers[-1]


def test_all_get_the_sum_of_all():
    job = Job(3)
    for epoch in range(50):  # more than are kept
        for phase in (TRAINING, VALIDATION, END):
            answer = all_post(job, 1, epoch, phase)
            assert total(answer) == 111 and answer.ranks == (0, 1, 2)
            assert answer.missing == {} and not answer.stop
    assert len(job.rounds._rounds) < 30


def test_one_that_stops_stops_all():
    job = Job(2)
    assert not all_post(job, 1, 0, TRAINING).stop
    assert all_post(job, 1, 0, END, stop=1).stop
    assert all_post(job, 1, 1, TRAINING).stop
    assert not all_post(job, 2, 0, TRAINING).stop


@pytest.mark.parametrize(("kind", "why"), [("lost", "dead"), ("left", "has left the job")])
def test_one_that_is_gone_is_not_waited_for(kind, why):
    job = Job(3)
    all_post(job, 1, 0, TRAINING)
    all_post(job, 1, 0, END)
    assert job.post(0, 1, 1, TRAINING) is None
    assert job.post(2, 1, 1, TRAINING) is None
    job.rounds.record(kind, 1)
    answer = job.answer(0, 1, 1, TRAINING)
    assert total(answer) == 101 and answer.ranks == (0, 2)
    assert list(answer.missing) == [1] and why in answer.missing[1]
    # The claim of an unauthenticated process changes nothing.
    job.rounds.attach(2, "a stranger")
    assert job.post(0, 1, 1, END) is None
    assert job.answer(2, 1, 1, TRAINING) == answer
    assert total(job.post(2, 1, 1, END)) == 101


def test_one_that_is_late_is_waited_for_once():
    job = Job(2)
    all_post(job, 1, 0, TRAINING)
    all_post(job, 1, 0, END)
    assert job.post(0, 1, 1, TRAINING) is None
    job.now = TIMEOUT - 0.1
    assert job.answer(0, 1, 1, TRAINING) is None
    job.now = TIMEOUT
    answer = job.answer(0, 1, 1, TRAINING)
    assert total(answer) == 1 and "within 10 s" in answer.missing[1]
    # It is behind now.
    assert total(job.post(0, 1, 1, END)) == 1
    assert total(job.post(0, 1, 2, TRAINING)) == 1
    # It gets the numbers of all, and is waited for again once it has caught up.
    assert total(job.post(1, 1, 1, TRAINING)) == 11
    assert total(job.answer(0, 1, 1, TRAINING)) == 1
    job.post(1, 1, 1, END)
    assert total(job.post(1, 1, 2, TRAINING)) == 11
    assert job.post(0, 1, 2, END) is None
    assert total(job.post(1, 1, 2, END)) == 11
    assert job.post(0, 1, 3, TRAINING) is None


def test_one_whose_step_waits_for_another_is_not_waited_for():
    job = Job(3)
    assert job.post(0, 1, 0, TRAINING) is None
    job.waiting.add((1, 0))
    assert job.answer(0, 1, 0, TRAINING) is None  # of rank 2
    job.waiting.add((2, 1))  # which is no poster
    assert job.answer(0, 1, 0, TRAINING) is None
    answer = job.post(2, 1, 0, TRAINING)
    assert answer.ranks == (0, 2) and "steps left" in answer.missing[1]


def test_a_look_says_nothing_of_who_has_posted_since():
    """A step's earlier wait may have ended meanwhile."""
    job = Job(2)
    job.now = 2.0
    job.rounds.post(Key(1, 0, TRAINING), 0, "process 0", state(1), False, job.now)
    job.rounds.update_waits([0, 0b01], began=1.9)
    assert not job.rounds.settle(job.now)
    job.rounds.update_waits([0, 0b01], began=2.1)
    assert job.rounds.settle(2.2)
    assert "steps left" in job.rounds.answer(Key(1, 0, TRAINING), 0).missing[1]


def test_a_worker_may_make_steps_before_its_connection_is_recorded():
    rounds = EpochRounds(2, TIMEOUT, now=0.0)
    key = Key(1, 0, TRAINING)
    rounds.post(key, 0, "a", state(1), False, 1.0)
    rounds.update_waits([0, 0b01], began=1.1)
    assert rounds.settle(1.2)
    assert "steps left" in rounds.answer(key, 0).missing[1]


def test_in_the_first_epoch_all_that_are_there_are_waited_for():
    job = Job(2)
    assert job.post(0, 1, 7, TRAINING) is None
    job.rounds.record("lost", 1)
    assert total(job.answer(0, 1, 7, TRAINING)) == 1
    # In a fit of its own, the chief waits for the other one again, but once.
    job.rounds.record("came", 1)
    assert job.post(0, 2, 0, TRAINING) is None
    job.now = TIMEOUT
    assert total(job.answer(0, 2, 0, TRAINING)) == 1
    assert total(job.post(0, 2, 0, END)) == 1
    assert total(job.post(0, 2, 1, TRAINING)) == 1


def test_while_the_server_is_young_all_are_expected_to_come():
    rounds = EpochRounds(2, 60.0, now=0.0)
    rounds.record("came", 0)
    key = Key(1, 5, TRAINING)
    rounds.post(key, 0, "a", state(1), False, 1.0)
    assert not rounds.settle(4.9) and rounds.answer(key, 0) is None
    assert rounds.settle(5.0) and total(rounds.answer(key, 0)) == 1


def test_a_worker_without_validation_data_is_not_waited_for_there():
    job = Job(2)
    all_post(job, 1, 0, TRAINING)
    assert job.post(0, 1, 0, VALIDATION) is None
    assert job.post(1, 1, 0, END) is None
    answer = job.answer(0, 1, 0, VALIDATION)
    assert total(answer) == 1 and answer.missing == {}
    assert total(job.post(0, 1, 0, END)) == total(job.answer(1, 1, 0, END)) == 11


def test_a_worker_that_was_started_again_holds_nobody_up():
    job = Job(2)
    for epoch in range(3):
        all_post(job, 1, epoch, TRAINING)
        all_post(job, 1, epoch, END)
    job.rounds.record("lost", 1)
    job.rounds.attach(1, "another process")
    job.rounds.record("came", 1)
    assert total(job.post(0, 1, 3, TRAINING)) == 1
    # It begins with epoch 0, whose numbers are known.
    assert total(job.post(1, 1, 0, TRAINING, process="another process")) == 11
    assert total(job.post(0, 1, 3, END, stop=True)) == 1
    answer = job.post(1, 1, 1, TRAINING, process="another process")
    assert total(answer) == 11 and answer.stop


def test_a_job_whose_workers_were_all_started_again_begins_anew():
    job = Job(2)
    all_post(job, 1, 0, TRAINING, stop=0)
    for rank in range(2):
        job.rounds.record("lost", rank)
    for rank in range(2):
        job.rounds.attach(rank, f"second {rank}")
        job.rounds.record("came", rank)
    assert job.post(0, 1, 0, TRAINING, process="second 0") is None
    answer = job.post(1, 1, 0, TRAINING, process="second 1")
    assert total(answer) == 11 and not answer.stop


def test_what_is_forgotten_leaves_a_worker_its_own():
    job = Job(2)
    job.post(0, 1, 0, TRAINING)
    job.now = TIMEOUT
    assert total(job.answer(0, 1, 0, TRAINING)) == 1
    for epoch in range(1, 40):
        job.post(0, 1, epoch, TRAINING)
    assert job.post(0, 1, 40, TRAINING, stop=True).stop
    answer = job.post(1, 1, 0, TRAINING)
    assert answer.state is None and answer.stop


@pytest.mark.parametrize("comes_again", [False, True])
def test_what_a_dead_worker_has_posted_is_forgotten(comes_again):
    """Rank 2 is where rank 1 has posted alone, and delays no other worker."""
    job = Job(3)
    all_post(job, 1, 0, TRAINING)
    assert job.post(1, 1, 0, VALIDATION) is None
    job.rounds.record("lost", 1)
    if comes_again:
        job.rounds.attach(1, "another process")
        job.rounds.record("came", 1)
    job.waiting.add((2, 0))
    for epoch in range(50):
        for phase in (END, TRAINING) if epoch else (END,):
            assert total(job.post(0, 1, epoch, phase)) == 1
    assert len(job.rounds._rounds) < 30


def test_a_worker_may_post_again():
    """Its connection broke before it was answered: it counts once."""
    job = Job(2)
    assert job.post(0, 1, 0, TRAINING) is None
    assert job.post(0, 1, 0, TRAINING) is None
    assert total(job.post(1, 1, 0, TRAINING)) == 11
    assert total(job.post(1, 1, 0, TRAINING)) == 11


@pytest.mark.parametrize("different", [0, 1, 2])
def test_other_metrics_on_one_worker(different):
    """In any order, equal metrics are merged, and all answers name the worker that differs."""
    job = Job(3)
    key = (1, 0, TRAINING)
    for rank in range(3):
        own = MetricStates.of([np.full(3, 7.0)], ["sum"]) if rank == different else state(10**rank)
        job.rounds.post(Key(*key), rank, f"process {rank}", own, False, job.now)
    alike = [rank for rank in range(3) if rank != different]
    one, three = '[["f", 1, "sum"]]', '[["f", 3, "sum"]]'
    for rank in alike:
        answer = job.answer(rank, *key)
        assert answer.ranks == tuple(alike) and total(answer) == sum(10**r for r in alike)
        why = f"has other metrics: expected {one}, received {three}"
        assert answer.missing == {different: why}
    answer = job.answer(different, *key)
    assert answer.ranks == (different,) and answer.state.arrays()[0].tolist() == [7.0] * 3
    why = f"has other metrics: expected {three}, received {one}"
    assert answer.missing == dict.fromkeys(alike, why)


def test_states_are_merged_as_they_declare():
    random = np.random.default_rng(3)
    arrays = [
        [random.normal(size=(2, 3)).astype("float32"), random.integers(0, 99, 4), np.float32(r)]
        for r in range(3)
    ]
    for aggregation, merge in {
        "sum": lambda parts: np.sum(parts, axis=0),
        "mean": lambda parts: np.mean(parts, axis=0),
        "first": lambda parts: parts[0],
    }.items():
        states = [MetricStates.of(each, [aggregation] * 3) for each in arrays]
        for each in states:
            each.check()
        merged = metric_states.merge(states).arrays()
        for found, parts in zip(merged, zip(*arrays, strict=True), strict=True):
            expected = np.ravel(merge(np.asarray(parts, np.float64)))
            if found.dtype == np.int64:
                expected = np.rint(expected)
            np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_states_that_make_no_sense():
    with pytest.raises(StateError, match="at most .* 8388608 bytes, received 1 var.* 16000000 b"):
        MetricStates.of([np.zeros(2_000_000)], ["sum"])
    with pytest.raises(StateError, match="expected numbers, received"):
        MetricStates.of([np.array(["a"])], ["sum"])
    good = state(1)
    for fields, content in [
        ((Field("f", 2, "sum"),), good.content),
        ((Field("f", -1, "sum"),), b""),
        ((Field("f", 1, "most"),), good.content),
        ((Field("x", 1, "sum"),), good.content),
        ((Field("f", 0, "sum"),) * 2001, b""),
        (good.fields, good.content[:-1]),
    ]:
        with pytest.raises(StateError, match="expected the states of metrics"):
            MetricStates(fields, content).check()


def request(**changes):
    fields = {
        "fingerprint": "",
        "process": "a",
        "rank": 0,
        "fit": 1,
        "epoch": 0,
        "phase": TRAINING,
        "stop": False,
        "state": state(1),
        "wait": 0.0,
    }
    return messages.EpochRequest(**{**fields, **changes})


def test_requests_that_make_no_sense():
    service = EpochService(2, TIMEOUT, lambda: [0, 0])
    assert service.answer(request(), ClientContext()) == {"status": "missing"}  # not attached yet
    service.attach(0, "a")
    for changes, reason in [
        ({"rank": 2}, "there is no rank 2 among 2"),
        ({"rank": -1}, "there is no rank -1 among 2"),
        ({"phase": 4}, "there is no round"),
        ({"fit": 0}, "there is no round"),
    ]:
        answer = service.answer(request(**changes), ClientContext())
        assert answer["status"] == "refused" and reason in answer["reason"], changes
    wrong = MetricStates(state(1).fields, b"")
    assert service.answer(request(state=wrong), ClientContext())["status"] == "differs"
    assert service.answer(request(state=None), ClientContext()) == {"status": "missing"}


def test_a_state_that_comes_twice():
    """The answer to the first request was lost."""
    service = EpochService(1, TIMEOUT, lambda: [0])
    service.attach(0, "a")
    for _ in range(2):
        answer = service.answer(request(), ClientContext())
        assert answer["status"] == "over" and answer["content"] == state(1).content
        assert answer["ranks"] == [0] and answer["missing"] == {}


def test_one_look_serves_all_that_wait():
    """A thread of its own takes it, without the lock: it may ask other servers."""
    workers = 6
    looks, gate = [], threading.Semaphore(0)

    def waits():
        looks.append(threading.current_thread())
        assert gate.acquire(timeout=30)
        # In the end the last worker's step waits for rank 0's.
        return [0] * (workers - 1) + [int(len(looks) > 3)]

    service = EpochService(workers, 60.0, waits)
    for rank in range(workers):
        service.attach(rank, f"process {rank}")
        service.record("came", rank)
    try:
        with futures.ThreadPoolExecutor(workers) as pool:
            calls = [
                pool.submit(
                    service.answer,
                    request(rank=rank, process=f"process {rank}", wait=30.0),
                    ClientContext(),
                )
                for rank in range(workers - 1)
            ]
            gate.release(4)
            answers = [call.result(30) for call in calls]
    finally:
        service.close()
        gate.release(100)
    assert {answer["status"] for answer in answers} == {"over"}
    assert all(answer["ranks"] == [*range(workers - 1)] for answer in answers)
    assert all("steps left" in answer["missing"]["5"] for answer in answers)
    assert len(looks) <= 5 and len(set(looks)) == 1
    assert looks[0] is not threading.current_thread()


def test_what_steps_wait_for_on_the_way_between_servers():
    waits = [0, 0b101, 1 << 200]
    assert step_waits.decoded(json.loads(json.dumps(step_waits.encoded(waits))), 3) == waits
    assert step_waits.decoded({"status": "waiting"}, 2) == [0, 0]
    for answer in ({}, {"waits": ["0"]}, {"waits": [0, 0]}, {"waits": ["x", "0"]}, {"waits": "00"}):
        with pytest.raises(ValueError, match="expected sets of 2 workers|invalid literal"):
            step_waits.decoded(answer, 2)
