"""When a host on which workers fail is left out, and for how long: at given times."""

from __future__ import annotations

import pytest

from tfdist.errors import ClusterConfigError
from tfdist.launch.hosts.cooldown import Cooldown, Cooldowns

pytestmark = pytest.mark.timeout(30)


def fail(cooldowns, *lives, host="b", at=1000.0):
    """Lets one worker after the other fail after a life; returns what each failure says."""
    found = []
    for life in lives:
        found.append(cooldowns.failed(host, at + 1, at + 1 + life))
        at += 1 + life
    return found


def test_the_third_failure_within_the_window_is_too_many():
    assert fail(Cooldowns(Cooldown()), 50, 50, 50) == [False, False, True]
    assert fail(Cooldowns(Cooldown()), 140, 140, 140) == [False, False, True]


def test_failures_that_are_far_apart_are_none_of_the_host():
    assert fail(Cooldowns(Cooldown()), *[160] * 10) == [False] * 10


def test_each_host_has_its_own():
    cooldowns = Cooldowns(Cooldown())
    for host in ("a", "b", "c"):
        assert fail(cooldowns, 5, 5, host=host) == [False, False]
    assert fail(cooldowns, 5, host="b", at=1100.0) == [True]
    cooldowns.leave_out("b", 1200.0)
    left_out = [host for host in ("a", "b", "c", "d") if cooldowns.is_left_out(host, 1201.0)]
    assert left_out == ["b"]


def test_workers_that_die_together_are_one_failure():
    cooldowns = Cooldowns(Cooldown())
    for time in (100.0, 110.0):
        assert not any(cooldowns.failed("b", time, time + 5 + number) for number in range(8))
    # A worker that was started before the others had died.
    assert not cooldowns.failed("b", 114.0, 119.0)
    assert cooldowns.failed("b", 120.0, 121.0)


def test_the_cooldown_doubles_with_each_trial_that_fails_up_to_the_longest():
    cooldowns = Cooldowns(Cooldown(first=10.0, longest=35.0))
    assert fail(cooldowns, 1, 1, 1)[-1]
    now, told = 1010.0, []
    for _ in range(4):
        seconds, reason = cooldowns.leave_out("b", now)
        assert cooldowns.is_left_out("b", now + seconds - 0.1)
        now += seconds
        assert not cooldowns.is_left_out("b", now)
        told.append((seconds, reason))
        assert fail(cooldowns, 1, at=now) == [True]
        now += 5
    assert [seconds for seconds, _ in told] == [10, 20, 35, 35]
    assert told[0][1] == "workers have failed there 3 times within 300 s"
    assert {reason for _, reason in told[1:]} == {
        "a worker has failed again since it was tried again"
    }


def test_a_long_life_ends_the_trial():
    cooldowns = Cooldowns(Cooldown(first=10.0))
    fail(cooldowns, 1, 1, 1)
    cooldowns.leave_out("b", 1010.0)
    assert fail(cooldowns, 400, 1, 1, at=1100.0) == [False, False, True]
    assert cooldowns.leave_out("b", 2000.0)[0] == 10


def test_a_worker_that_was_there_before_the_cooldown_is_no_trial():
    cooldowns = Cooldowns(Cooldown())
    fail(cooldowns, 1, 1, 1)
    cooldowns.leave_out("b", 1010.0)
    assert not cooldowns.failed("b", 1000.0, 1050.0)


def test_a_range_that_contradicts_itself_is_refused():
    message = "--blacklist-cooldown-range: expected .* at least the first one, 30 s, received 20 s"
    with pytest.raises(ClusterConfigError, match=message):
        Cooldown(30.0, 20.0)
