"""Workers that are killed or fall silent while `fit` runs, and come back."""

from __future__ import annotations

import time

import pytest

from support.processes.ranks import start_ranks
from support.ps_job import roles
from support.training.known_gradient import (
    ended_well,
    go_on,
    reach,
    steps_in,
    train,
    wait_until,
    weight_after,
)

pytestmark = pytest.mark.timeout(240)
WORKER_TIMEOUT = 3.0


@pytest.mark.long("async-chief", covered_by="the other cases")
@pytest.mark.parametrize(
    ("options", "victim"),
    [({}, 0), ({}, 1), ({"mode": "ssp", "staleness": 2}, 1)],
    ids=["async-chief", "async-worker", "ssp-worker"],
)
def test_the_others_go_on_without_a_killed_worker_and_it_comes_back(options, victim):
    other = 1 - victim
    options = {"pauses": [(10, 40)] * 2, "worker_timeout": WORKER_TIMEOUT, **options}
    with start_ranks(train, 3, kwargs=options, roles=roles(2)) as ranks:
        reach(ranks, 10, 0, 1)
        ranks[victim].kill()
        start = time.monotonic()
        go_on(ranks, other)
        reach(ranks, 40, other)
        seconds = time.monotonic() - start
        go_on(ranks, other)
        (survivor,) = ranks.join(timeout=60, only=[other])
        ranks.restart(victim)
        began = ranks.wait_for(victim, "began with", timeout=60)
        for step in (10, 40):
            reach(ranks, step, victim)
            go_on(ranks, victim)
        outcomes = ranks.join(timeout=60)
    ended_well(outcomes, workers=2)
    made = {victim: 10, other: 40}
    assert survivor.result["weight"] == began["weight"] == weight_after(made[0], made[1])
    assert survivor.result["iterations"] == began["iterations"] == 50
    made[victim] += 40
    assert outcomes[victim].result["weight"] == weight_after(made[0], made[1])
    assert outcomes[victim].result["iterations"] == 90
    log = outcomes[2].output
    if "mode" in options:
        name = ("chief", "worker 0")[victim]
        assert f"{name} is dropped: others have waited for it longer than 3 s" in log
        assert f"{name} is back, at step 40" in log
        assert seconds >= WORKER_TIMEOUT
    else:
        assert "dropped" not in log


@pytest.mark.long(covered_by="test_sync_goes_on_when_a_worker_is_killed_at_any_moment")
def test_sync_goes_on_with_two_of_three_and_again_with_all():
    options = {
        "pauses": [(1, 10, 15, 25), (1, 10, 15, 25), (1, 10)],
        "mode": "sync",
        "scale": 6,
        "worker_timeout": WORKER_TIMEOUT,
    }
    with start_ranks(train, 4, kwargs=options, roles=roles(3)) as ranks:
        for step in (1, 10):
            reach(ranks, step, 0, 1, 2)
            if step == 1:
                go_on(ranks, 0, 1, 2)
        ranks[2].kill()
        go_on(ranks, 0, 1)
        reach(ranks, 15, 0, 1)
        ranks.restart(2)
        began = ranks.wait_for(2, "began with", timeout=60)
        reach(ranks, 1, 2)  # it has pushed for the next step, which waits for the others
        go_on(ranks, 0, 1, 2)
        reach(ranks, 25, 0, 1)
        reach(ranks, 10, 2)
        go_on(ranks, 0, 1, 2)
        outcomes = ranks.join(timeout=60)
    ended_well(outcomes, workers=3)
    # Gradients are means over the participants: six times a slope gives 2 or 3 of it.
    assert began["weight"] == weight_after(2 * 10 + 3 * 5, 2 * 10 + 3 * 5, 2 * 10)
    assert began["iterations"] == 15
    for outcome in outcomes[:3]:
        assert outcome.result["weight"] == weight_after(2 * 20 + 3 * 5, 2 * 20 + 3 * 5, 2 * 20)
        assert outcome.result["iterations"] == 25
        assert outcome.result["stats"].dropped_pushes == 0
    log = outcomes[3].output
    assert "worker 1 is dropped: others have waited for it longer than 3 s, at step 10" in log
    assert "worker 1 is back, at step 15" in log


@pytest.mark.long(covered_by="test_sync_goes_on_when_a_worker_is_killed_at_any_moment")
def test_sync_goes_on_when_a_worker_falls_silent_and_comes_back():
    steps = 500
    options = {
        "pauses": [(10, steps)] * 3,
        "mode": "sync",
        "scale": 6,
        "slowness": 0.003,
        "worker_timeout": WORKER_TIMEOUT,
    }
    with start_ranks(train, 4, kwargs=options, roles=roles(3)) as ranks:
        reach(ranks, 10, 0, 1, 2)
        go_on(ranks, 0, 1, 2)
        time.sleep(0.1)  # some steps later
        ranks[1].stop()
        log = ranks[3].assignment.output
        wait_until(lambda: "worker 0 is dropped" in log.read_text(), "the server's dropping it")
        ranks[1].resume()
        for survivors in ((0, 2), (1,)):
            reach(ranks, steps, *survivors)
            go_on(ranks, *survivors)
        outcomes = ranks.join(timeout=60)
        assert "worker 0 is back, at step" in log.read_text()
    ended_well(outcomes, workers=3)
    # All three saw `of_three` steps, the survivors the first `steps`, and the other one the rest.
    last = outcomes[1].result
    first, second, third = steps_in(last["weight"], 3)
    of_three = 3 * steps - first
    alone, rest = divmod(second - 2 * of_three, 6)
    assert first == third and rest == 0
    assert 10 <= of_three < steps and alone >= 0
    assert last["iterations"] == steps + alone
    # Its gradient from before the silence may have come too late.
    assert last["stats"].dropped_pushes == steps - of_three - alone <= 1
    for survivor in (outcomes[0].result, outcomes[2].result):
        assert survivor["stats"].dropped_pushes == 0


def test_sync_goes_on_when_a_worker_is_killed_at_any_moment():
    steps = 500
    options = {
        "pauses": [(10, steps)] * 3,
        "mode": "sync",
        "scale": 6,
        "slowness": 0.003,
        "worker_timeout": WORKER_TIMEOUT,
    }
    # After that the server counts the killed worker as gone for good, and ends with the others.
    env = {"TFDIST_RENDEZVOUS_TIMEOUT": "10"}
    with start_ranks(train, 4, kwargs=options, env=env, roles=roles(3)) as ranks:
        reach(ranks, 10, 0, 1, 2)
        go_on(ranks, 0, 1, 2)
        time.sleep(0.1)  # some steps later
        ranks[1].kill()
        dead_at = time.monotonic()
        reach(ranks, steps, 0, 2)
        go_on(ranks, 0, 2)
        outcomes = ranks.join(timeout=60)
    ended_well([outcomes[0], *outcomes[2:]], workers=3)
    for outcome in (outcomes[0], outcomes[2]):
        first, second, third = steps_in(outcome.result["weight"], 3)
        of_three = second // 2
        assert (first, second, third) == (
            2 * of_three + 3 * (steps - of_three),
            2 * of_three,
            2 * of_three + 3 * (steps - of_three),
        )
        made = sum(ended_at < dead_at for ended_at in outcome.result["ends"])
        assert 10 <= of_three <= made + 2
        assert outcome.result["iterations"] == steps
    assert "worker 0 is dropped: others have waited for it longer than 3 s" in outcomes[3].output
