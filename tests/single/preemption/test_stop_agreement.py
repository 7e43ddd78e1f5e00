"""The workers of a job agree on their last step: simulated workers, whose steps are barriers."""

from __future__ import annotations

import random
import threading
import time

import pytest

from support import tiers
from support.elastic.control_tasks import Background
from support.patience import wait_until
from tfdist.control.client import UnreachableError
from tfdist.control.held_calls import ClientContext
from tfdist.preemption import messages
from tfdist.preemption.stop_board import StopBoard
from tfdist.preemption.stop_watch import StopWatch

FINGERPRINT = "a job"
STEPS = 400


class Workers:
    """Workers whose step s ends when all have begun step s - `steps_ahead`."""

    def __init__(self, size: int, steps_ahead: int, seed: int, timeout: float = 10.0) -> None:
        self._random = random.Random(seed)
        self._ahead = steps_ahead
        self._begun = [0] * size
        self._changed = threading.Condition()
        self.board = StopBoard(size, FINGERPRINT)
        self.unreachable: set[int] = set()
        self.noticed = [False] * size
        self.watches = [
            StopWatch(f"worker {rank}", rank, FINGERPRINT, self._call_of(rank), timeout)
            for rank in range(size)
        ]

    def _call_of(self, rank: int):
        def call(request: messages.StopRequest) -> dict:
            if rank in self.unreachable:
                time.sleep(0.01)
                raise UnreachableError("cut off")
            time.sleep(self._random.random() * 0.002)
            answer = self.board.answer(request, ClientContext())
            time.sleep(self._random.random() * 0.002)
            return answer

        return call

    def begun(self, step: int) -> None:
        """Waits until a worker has begun a step."""
        with self._changed:
            assert self._changed.wait_for(lambda: max(self._begun) >= step, 20)

    def train(self, rank: int) -> int:
        """Makes steps until this worker stops; returns their number."""
        for step in range(1, STEPS + 1):
            time.sleep(self._random.random() * 0.002)
            with self._changed:
                self._begun[rank] = step
                self._changed.notify_all()
                needed = step - self._ahead
                if not self._changed.wait_for(lambda n=needed: min(self._begun) >= n, 20):
                    raise TimeoutError(f"rank {rank} waits in step {step} for {self._begun}")
            if self.watches[rank].ends_after_step(self.noticed[rank], self._ahead):
                return step
        raise AssertionError(f"rank {rank} did not stop")

    def close(self) -> None:
        for watch in self.watches:
            watch.close()
        self.board.close()


# Two workers with a hub in all-reduce, and four with servers.
@pytest.mark.long("2-*-servers", "4-*", usual="4-some-servers", covered_by="the other cases")
@pytest.mark.parametrize("steps_ahead", [0, 1], ids=["all_reduce", "servers"])
@pytest.mark.parametrize("who", ["one", "all", "some"])
@pytest.mark.parametrize("size", [2, 4])
def test_all_stop_after_the_same_step(size, who, steps_ahead):
    for seed in range(tiers.rounds(3, 100)):
        draw = random.Random(seed)
        workers = Workers(size, steps_ahead, seed)
        trainings = [Background(workers.train, rank) for rank in range(size)]
        told = {"one": 1, "all": size, "some": draw.randint(1, size)}[who]
        first = draw.randint(1, 20)
        workers.begun(first)
        for rank in draw.sample(range(size), told):
            workers.noticed[rank] = True
            time.sleep(draw.random() * 0.01)
        ends = [training.result(30) for training in trainings]
        workers.close()
        assert len(set(ends)) == 1, (seed, ends)
        # A worker that is told to end makes one step more, or two.
        assert ends[0] >= first
        assert [watch.last_step for watch in workers.watches] == [ends[0]] * size


def test_without_steps_in_common_each_stops_by_itself():
    workers = Workers(2, 0, 0)
    assert not workers.watches[0].ends_after_step(False, None)
    workers.watches[1].steps = 70
    assert workers.watches[1].ends_after_step(True, None)
    wait_until(lambda: workers.watches[0].ends_after_step(False, None), "the end of worker 0")
    assert workers.watches[0].told == 1
    workers.close()


def test_a_worker_that_cannot_reach_the_hub_stops_nobody(caplog):
    workers = Workers(2, 0, 0, timeout=0.1)
    workers.unreachable = {1}
    assert not workers.watches[1].ends_after_step(True, 0)
    assert "the other workers could not be told within 0.1 s" in caplog.text
    assert workers.watches[1].last_step is None
    workers.unreachable.clear()
    trained = Background(workers.watches[1].ends_after_step, True, 0)
    assert not trained.result() and workers.watches[1].last_step == 3
    workers.close()


def test_a_worker_that_does_not_answer_is_named(caplog):
    workers = Workers(3, 0, 0, timeout=0.3)
    workers.unreachable = {2}
    assert not workers.watches[0].ends_after_step(True, 0)
    assert "stopping after step 2, which ranks 2 did not confirm within 0.3 s" in caplog.text
    assert workers.watches[0].last_step == 2
    workers.close()


def test_a_worker_that_was_started_again_does_not_wait_for_the_others_count():
    workers = Workers(2, 1, 0)
    workers.watches[0].steps = 49
    assert not workers.watches[0].ends_after_step(True, 1)
    assert workers.watches[0].last_step == 52
    ends = [workers.watches[1].ends_after_step(False, 1) for _ in range(5)]
    assert ends == [False, False, False, True, True]
    workers.close()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"fingerprint": "another"}, "another cluster"),
        ({"rank": 2}, "the caller says rank 2, expected a rank in"),
        ({"rank": -1}, "the caller says rank -1"),
        ({"last_step": -3}, "expected steps of at least 0, received -3"),
    ],
)
def test_bad_requests_are_refused(changes, reason):
    fields = {
        "fingerprint": FINGERPRINT,
        "rank": 0,
        "last_step": 5,
        "stored": 0,
        "noticed": True,
        "wait": float("nan"),
    }
    board = StopBoard(2, FINGERPRINT)
    answer = board.answer(messages.StopRequest(**(fields | changes)), ClientContext())
    assert answer["status"] == "refused" and reason in answer["reason"]
    assert not board.noticed
    assert board.answer(messages.StopRequest(**fields), ClientContext())["last_step"] == 5


def test_a_worker_that_only_stops_with_another_one_was_not_told():
    board = StopBoard(2, FINGERPRINT)

    def answer(**fields):
        unset = {"last_step": 1, "stored": 0, "wait": 0.0}
        request = {"fingerprint": FINGERPRINT} | unset | fields
        return board.answer(messages.StopRequest(**request), ClientContext())

    assert answer(rank=0, noticed=False)["told"] == -1
    assert board.noticed
    assert answer(rank=1, noticed=True)["told"] == 1
    assert answer(rank=0, noticed=True)["told"] == 1
