"""Actions at given times: which are called, in which order, and which are cancelled before."""

from __future__ import annotations

import pytest

from tfdist.launch.deadlines import Deadlines


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def deadlines(clock):
    return Deadlines(clock)


def test_an_action_is_called_once_when_its_time_has_come(clock, deadlines):
    called = []
    deadlines.set("a", 2.0, lambda: called.append(clock.now))
    deadlines.act()
    clock.now = 101.9
    deadlines.act()
    assert not called and "a" in deadlines
    for clock.now in (102.0, 103.0):
        deadlines.act()
    assert called == [102.0] and "a" not in deadlines


def test_the_next_time_is_the_soonest(clock, deadlines):
    assert deadlines.next is None
    for name, seconds in (("a", 3.0), ("b", 2.0), ("c", 4.0)):
        deadlines.set(name, seconds, pytest.fail)
    assert deadlines.next == 102.0
    deadlines.cancel("b")
    deadlines.cancel("b")
    assert deadlines.next == 103.0
    deadlines.set("a", 9.0, pytest.fail)
    assert deadlines.next == 104.0


def test_all_but_one_are_cancelled(clock, deadlines):
    called = []
    for name in "abc":
        deadlines.set(name, 1.0, lambda name=name: called.append(name))
    deadlines.cancel_all(keep="b")
    clock.now += 1.0
    deadlines.act()
    assert called == ["b"]
    deadlines.set("d", 0.0, pytest.fail)
    deadlines.cancel_all()
    deadlines.act()


def test_an_action_cancels_another_that_is_due_at_the_same_time(clock, deadlines):
    called = []

    def first():
        called.append("first")
        deadlines.cancel("second")
        deadlines.set("third", 5.0, lambda: called.append("later"))

    deadlines.set("first", 1.0, first)
    deadlines.set("second", 1.0, lambda: called.append("second"))
    deadlines.set("third", 1.0, lambda: called.append("third"))
    clock.now += 3.0
    deadlines.act()
    assert called == ["first"]
    clock.now += 5.0
    deadlines.act()
    assert called == ["first", "later"]


def test_an_action_sets_its_own_name_again(clock, deadlines):
    called = []

    def repeat():
        called.append(clock.now)
        deadlines.set("repeat", 2.0, repeat)

    repeat()
    for clock.now in (101.0, 102.0, 104.0):
        deadlines.act()
    assert called == [100.0, 102.0, 104.0]
