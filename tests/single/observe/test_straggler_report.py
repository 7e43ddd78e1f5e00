"""The straggler report: the waits that it names, and the waits that it leaves out."""

from __future__ import annotations

import logging

import pytest

from support.patience import wait_until
from tfdist.observe import stragglers
from tfdist.observe.stragglers import StragglerReport, describe

pytestmark = pytest.mark.timeout(30)


class Waiting:
    """In place of a communicator."""

    def __init__(self, **seconds):
        self.seconds = seconds
        self.causes = {}

    def waits(self):
        return {name.replace("_", " "): waited for name, waited in self.seconds.items()}

    def take_longest_wait(self, name):
        return self.causes.pop(name, "")


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets."""
    now = [100.0]
    monkeypatch.setattr(stragglers.time, "monotonic", lambda: now[0])
    return now


def test_describes_the_longest_first():
    text = describe([(41.2, "worker 2", "all_reduce 'a'"), (20.0, "worker 0", "")], 133.0, 1200)
    assert text == (
        "waited 41.2 s for worker 2 (31 % of the last 133 s, since step 1200), most in "
        "all_reduce 'a'; 20.0 s for worker 0 (15 %)"
    )
    assert describe([(3.0, "worker 1", "")], 6.0, None) == (
        "waited 3.0 s for worker 1 (50 % of the last 6 s)"
    )
    assert describe([], 6.0, None) == ""


def test_reports_each_wait_once(clock, caplog):
    steps = [7]
    report = StragglerReport("worker 0", 0, lambda: steps[0])
    waiting = Waiting(worker_1=50.0, worker_2=0.0)
    report.follow(waiting)
    clock[0] += 100
    # Waits before the report begins do not count.
    waiting.seconds = {"worker_1": 50.5, "worker_2": 30.0}
    waiting.causes = {"worker 2": "all_reduce 'dense'"}
    steps[0] = 90
    report.report()
    assert caplog.messages == [
        "worker 0: waited 30.0 s for worker 2 (30 % of the last 100 s, since step 7), most in "
        "all_reduce 'dense'"
    ]
    clock[0] += 100
    report.report()
    assert len(caplog.messages) == 1
    clock[0] += 10
    waiting.seconds["worker_2"] += 5
    report.close()
    report.close()
    assert caplog.messages[1:] == [
        "worker 0: waited 5.0 s for worker 2 (50 % of the last 10 s, since step 90)"
    ]


@pytest.mark.parametrize(
    ("waited", "elapsed", "reported"), [(0.9, 2, False), (1.0, 2, True), (9, 100, False)]
)
def test_little_waiting_is_no_news(clock, caplog, waited, elapsed, reported):
    report = StragglerReport("worker 0", 0, lambda: None)
    waiting = Waiting(worker_1=0.0)
    report.follow(waiting)
    clock[0] += elapsed
    waiting.seconds["worker_1"] = waited
    report.report()
    assert bool(caplog.messages) == reported


def test_reports_by_itself_and_survives_an_error(caplog):
    caplog.set_level(logging.WARNING)
    report = StragglerReport("worker 0", 0.05, lambda: None)

    class Broken(Waiting):
        def waits(self):
            self.seconds["asked"] += 1
            if self.seconds["asked"] == 2:
                raise RuntimeError("of the test")
            return {"worker 1": 100.0 * self.seconds["asked"]}

    report.follow(Broken(asked=0))
    wait_until(lambda: "waited" in caplog.text, "a report")
    report.close()
    assert "the straggler report failed" in caplog.text
