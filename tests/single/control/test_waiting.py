"""Waits for other processes: deadlines, calls, pauses and log lines."""

from __future__ import annotations

import itertools
import logging
import math
import threading

import pytest

from support.patience import wait_until
from tfdist.control import waiting
from tfdist.control.waiting import Wait


class Clock:
    """A clock in place of `time.monotonic`, which only the pauses of `Closed` move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Closed(threading.Event):
    """An event whose waits move the clock, and are recorded."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self.pauses: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.pauses.append(round(timeout, 6))
        if not self.is_set():
            self._clock.now += timeout
        return self.is_set()


@pytest.fixture(name="clock")
def _clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(waiting, "time", clock)
    return clock


def test_the_deadline_ends_calls_and_pauses(clock: Clock) -> None:
    closed = Closed(clock)
    wait = Wait(1.0, closed, poll=5.0, pause=0.4)
    assert wait.poll() == 1.0
    while not wait.is_over:
        wait.pause()
    assert closed.pauses == [0.4, 0.4, 0.2]
    assert wait.elapsed == 1.0 and wait.remaining == 0.0 and wait.poll() == 0.0
    clock.now += 1.0
    assert wait.remaining == 0.0


def test_a_wait_without_a_timeout_does_not_end(clock: Clock) -> None:
    wait = Wait(poll=5.0)
    clock.now += 1e6
    assert not wait.is_over and wait.remaining == math.inf and wait.poll() == 5.0


def test_each_pause_doubles_the_one_before_until_the_peer_is_heard(clock: Clock) -> None:
    closed = Closed(clock)
    wait = Wait(100.0, closed, pause=0.2, longest_pause=1.0)
    for _ in range(5):
        wait.pause()
    wait.heard()
    wait.pause()
    assert closed.pauses == [0.2, 0.4, 0.8, 1.0, 1.0, 0.2]


def test_a_peer_that_was_heard_moves_the_deadline(clock: Clock) -> None:
    wait = Wait(10.0)
    clock.now += 9.0
    wait.heard()
    clock.now += 9.0
    assert not wait.is_over and wait.remaining == 1.0
    assert wait.elapsed == 18.0
    clock.now += 1.0
    assert wait.is_over


def test_a_log_line_is_due_once_in_each_interval_and_no_call_delays_it(clock: Clock) -> None:
    wait = Wait(100.0, poll=5.0, log_interval=8.0)
    assert not wait.is_log_due()
    clock.now += 5.0
    assert wait.poll() == 3.0
    clock.now += 3.0
    assert [wait.is_log_due(), wait.is_log_due()] == [True, False]
    clock.now += 50.0  # one line, not one for each interval that has passed
    assert [wait.is_log_due(), wait.is_log_due()] == [True, False]


def test_a_loop_without_log_lines_makes_long_calls_still(clock: Clock) -> None:
    wait = Wait(100.0, poll=5.0, log_interval=8.0)
    clock.now += 20.0
    assert wait.poll() == 5.0


def test_a_process_that_leaves_pauses_no_longer() -> None:
    closed = threading.Event()
    wait = Wait(60.0, closed, pause=60.0)
    assert not wait.is_closed
    threading.Timer(0.05, closed.set).start()
    wait.pause()
    assert wait.is_closed and wait.elapsed < 30.0


def test_a_blocking_wait_is_logged_at_once_and_repeatedly(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("tfdist.elastic")
    caplog.set_level(logging.INFO, log.name)
    with waiting.logged(log, "worker 3: waits", every=0.05):
        assert caplog.messages == ["worker 3: waits"]
        wait_until(lambda: len(caplog.messages) >= 3, "three log lines")
    lines = len(caplog.messages)
    levels = [record.levelname for record in caplog.records]
    assert levels == list(itertools.chain(["INFO"], itertools.repeat("WARNING", lines - 1)))
    assert caplog.messages[1] == "worker 3: waits, for 0 s by now"
