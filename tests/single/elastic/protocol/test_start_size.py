"""When an elastic job begins with fewer founders than it starts with."""

from __future__ import annotations

import pytest

from tfdist.config.elastic import Elastic
from tfdist.elastic.protocol import start_size
from tfdist.elastic.protocol.start_size import StartClock, StartSize


class Time:
    """A clock that a test sets."""

    now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def time(monkeypatch):
    found = Time()
    monkeypatch.setattr(start_size, "time", found)
    return found


def test_without_a_time_only_the_full_number_begins(time):
    clock = StartClock(StartSize.of(Elastic(1, 8), 3, None))
    for come in (1, 2):
        assert not clock.is_due(come)
        time.now += 1e6
    assert clock.is_due(3)


def test_the_full_number_begins_at_once(time):
    assert StartClock(StartSize(3, 2, 30.0)).is_due(3)


def test_the_least_number_begins_after_the_time(time):
    clock = StartClock(StartSize(4, 2, 30.0))
    assert not clock.is_due(1)
    time.now += 100
    assert not clock.is_due(2)
    time.now += 29
    assert not clock.is_due(2)
    # One more of them does not put the beginning off.
    assert not clock.is_due(3)
    time.now += 1
    assert clock.is_due(3)


def test_the_time_begins_anew_when_there_were_fewer(time):
    clock = StartClock(StartSize(4, 2, 30.0))
    assert not clock.is_due(2)
    time.now += 29
    assert not clock.is_due(1)
    time.now += 29
    assert not clock.is_due(2)
    time.now += 29
    assert not clock.is_due(2)
    time.now += 1
    assert clock.is_due(2)


def test_another_founding_has_its_own_time(time):
    clock = StartClock(StartSize(3, 2, 30.0))
    assert not clock.is_due(2)
    time.now += 40
    clock.clear()
    assert not clock.is_due(2)


def test_in_words():
    assert str(StartSize(3, 3, 0.0)) == "3"
    assert str(StartSize(3, 2, 2.5)) == "3, or of 2 after 2.5 s"
