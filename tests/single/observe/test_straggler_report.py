"""The straggler report: the tasks that it names, and the waits that it leaves out."""

from __future__ import annotations

import logging

import pytest

from support.patience import wait_until
from tfdist.observe import stragglers
from tfdist.observe.pauses import Pauses
from tfdist.observe.stragglers import LateTasks, ServerWaits, StragglerReport
from tfdist.observe.waits import TaskWaits

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets."""
    now = [100.0]
    monkeypatch.setattr(stragglers.time, "monotonic", lambda: now[0])
    return now


def job(seconds, causes=None, paused=None):
    """The waits of three workers: by the waiting and the awaited worker's numbers."""

    def of(worker):
        waits = {f"worker {late}": s for (who, late), s in seconds.items() if who == worker}
        told = {f"worker {late}": c for (who, late), c in (causes or {}).items() if who == worker}
        return TaskWaits(waits, told, (paused or {}).get(worker, 0.0))

    return {f"worker {worker}": of(worker) for worker in range(3)}


class Job:
    """A report of worker 0, and the waits that all workers answer."""

    def __init__(self, steps=lambda: None):
        self.waits = job({})
        self.report = StragglerReport("worker 0", 0, steps)
        self.report.follow(LateTasks(lambda: self.waits))


def test_a_late_task_is_named_with_what_the_others_did(clock, caplog):
    steps = [7]
    found = Job(lambda: steps[0])
    clock[0] += 100
    found.waits = job(
        {(0, 2): 41.2, (1, 2): 30.0, (2, 0): 0.4, (0, 1): 0.5},
        {(0, 2): "all_reduce 'gradients of the step'"},
    )
    found.report.report()
    assert caplog.messages == [
        "worker 0: worker 2 is late: others waited up to 41.2 s for it (41 % of the last 100 s, "
        "since step 7), most in all_reduce 'gradients of the step'; it waited 0.4 s"
    ]


def test_each_wait_is_reported_once(clock, caplog):
    found = Job()
    clock[0] += 100
    found.waits = job({(0, 1): 50.0})
    found.report.report()
    clock[0] += 100
    found.report.report()
    assert len(caplog.messages) == 1
    clock[0] += 10
    found.waits = job({(0, 1): 55.0})
    found.report.close()
    found.report.close()
    assert caplog.messages[1:] == [
        "worker 0: worker 1 is late: others waited up to 5.0 s for it (50 % of the last 10 s); it "
        "waited 0.0 s"
    ]


def test_tasks_that_wait_for_each_other_are_not_late(clock, caplog):
    """Workers that share a busy machine: each is now and then the last one."""
    found = Job()
    clock[0] += 100
    found.waits = job({(0, 1): 40.0, (1, 0): 38.0, (2, 0): 41.0, (0, 2): 39.0})
    found.report.report()
    assert not caplog.messages


def test_a_beginning_and_a_save_are_no_lateness(clock, caplog):
    found = Job()
    clock[0] += 100
    found.waits = job({(1, 0): 40.0, (2, 0): 39.0}, paused={0: 39.5})
    found.report.report()
    assert not caplog.messages
    # The rest of the time it computes for longer than the others.
    clock[0] += 100
    found.waits = job({(1, 0): 80.0, (2, 0): 79.0}, paused={0: 49.5})
    found.report.report()
    assert len(caplog.messages) == 1 and "worker 0 is late" in caplog.messages[0]


def test_a_task_that_has_started_again(clock, caplog):
    found = Job()
    found.waits = job({(0, 1): 500.0})
    clock[0] += 600
    found.report.report()
    caplog.clear()
    clock[0] += 100
    found.waits = job({(0, 1): 20.0})
    found.report.report()
    assert "waited up to 20.0 s" in caplog.text


def test_silence_if_a_task_does_not_answer(clock, caplog):
    found = Job()
    found.waits = None
    clock[0] += 100
    found.report.report()
    # The next answer tells of all the time.
    clock[0] += 100
    found.waits = job({(0, 1): 150.0})
    found.report.report()
    assert "waited up to 150.0 s" in caplog.text


@pytest.mark.parametrize(
    ("waited", "elapsed", "reported"), [(0.9, 2, False), (1.0, 2, True), (9, 100, False)]
)
def test_little_waiting_is_no_news(clock, caplog, waited, elapsed, reported):
    found = Job()
    clock[0] += elapsed
    found.waits = job({(0, 1): waited})
    found.report.report()
    assert bool(caplog.messages) == reported


class Waiting:
    """In place of a connection to servers."""

    seconds = 3.0

    def waits(self):
        return {"the parameter servers": self.seconds}

    def take_longest_wait(self, name):
        return "pulls"


def test_waits_for_servers(clock, caplog):
    report = StragglerReport("chief", 0, lambda: None)
    waiting = Waiting()
    report.follow(ServerWaits(waiting))
    # Waits before the report begins do not count.
    waiting.seconds = 15.0
    clock[0] += 100
    report.report()
    assert caplog.messages == [
        "chief: waited 12.0 s for the parameter servers (12 % of the last 100 s), most in pulls"
    ]


def test_reports_by_itself_and_survives_an_error(caplog):
    caplog.set_level(logging.WARNING)
    asked = []

    def ask():
        asked.append(1)
        if len(asked) == 2:
            raise RuntimeError("of the test")
        return job({(0, 1): 100.0 * len(asked)})

    report = StragglerReport("worker 0", 0.05, lambda: None)
    report.follow(LateTasks(ask))
    wait_until(lambda: len(asked) > 2, "a report")
    report.close()
    assert "waited up to" in caplog.text
    assert "the straggler report failed" in caplog.text


def test_pauses_within_each_other_count_once(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("tfdist.observe.pauses.time.monotonic", lambda: now[0])
    pauses = Pauses()
    with pauses.noted():
        now[0] = 1.0
        with pauses.noted():
            now[0] = 3.0
        now[0] = 4.0
        assert pauses.seconds == 4.0
    now[0] = 9.0
    assert pauses.seconds == 4.0
