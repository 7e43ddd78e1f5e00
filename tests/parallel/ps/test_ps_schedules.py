"""When servers apply pushes and answer pulls, by their own traces and by closed forms."""

from __future__ import annotations

import functools
import math
import random
import time

import pytest

from parallel.ps.ps_records import serve_and_tell
from parallel.ps.scripted_loop import ScriptedLoop
from support.processes.ranks import start_ranks
from support.ps_job import roles
from support.training.known_gradient import BASE, hear, tell, weight_after
from tfdist.ops.ps.server_records import TraceEvent

pytestmark = pytest.mark.timeout(120)
STEPS = 40
TRACED = 10_000
SYNC = [{"mode": "sync"}, {"mode": "ssp", "staleness": 0}]
ASYNC = [{"mode": "async"}, {"mode": "ssp", "staleness": math.inf}]


def train_unevenly(ctx, **options):
    """The three workers take turns at being the slow one, for random times."""
    records = serve_and_tell(TRACED)
    if records is not None:
        return records
    loop = ScriptedLoop(BASE**ctx.rank, **options)
    delays = random.Random(ctx.rank)
    seen = []
    for step in range(STEPS):
        is_slow = step // (STEPS // 3 + 1) == ctx.rank
        delay = delays.uniform(0, 0.05 if is_slow else 0.005)
        seen.append(loop.step(functools.partial(time.sleep, delay)))
    loop.settle()
    tell(ctx, f"{ctx.rank} has ended")
    for rank in range(3):
        hear(ctx, f"{rank} has ended")
    return {"seen": seen, "weight": loop.weight, "iterations": loop.iterations}


def run_unevenly(tmp_path, **options):
    with start_ranks(train_unevenly, 4, kwargs=options, roles=roles(3), tmp_path=tmp_path) as ranks:
        outcomes = ranks.join(timeout=90)
    assert all(outcome.ok for outcome in outcomes), "\n".join(o.describe() for o in outcomes)
    return [outcome.result for outcome in outcomes]


def leads_of(trace: list[TraceEvent]) -> list[int]:
    """Counts the pushes in a trace, and returns by how many each pull was ahead of the slowest."""
    clocks, leads = [0, 0, 0], []
    for event in trace:
        if event.kind == "push":
            clocks[event.worker] += 1
        else:
            assert event.kind == "pull"
            leads.append(clocks[event.worker] - min(clocks))
            assert event.slowest == min(clocks)
        assert event.clock == clocks[event.worker]
    assert clocks == [STEPS] * 3 and len(leads) == 3 * STEPS
    return leads


@pytest.mark.parametrize("staleness", [1, 3])
def test_no_worker_is_more_than_the_staleness_ahead(tmp_path, staleness):
    *workers, server = run_unevenly(tmp_path, mode="ssp", staleness=staleness)
    assert max(leads_of(server.trace)) == staleness
    assert server.stats.largest_lead == staleness
    assert (server.stats.pushes, server.stats.dropped_pushes) == (3 * STEPS, 0)
    for rank, worker in enumerate(workers):
        assert worker["weight"] == weight_after(STEPS, STEPS, STEPS)
        assert worker["iterations"] == 3 * STEPS
        for step, seen in enumerate(worker["seen"]):
            # Its own steps, all that are old enough, and none that are too young.
            others = [-int(seen) // BASE**other % BASE for other in range(3)]
            assert others.pop(rank) == step
            assert min(others) >= step - staleness


@pytest.mark.parametrize("options", ASYNC, ids=["async", "infinite"])
def test_nobody_waits_without_a_bound(tmp_path, options):
    *workers, server = run_unevenly(tmp_path, **options)
    assert max(leads_of(server.trace)) > 3
    for worker in workers:
        assert worker["weight"] == weight_after(STEPS, STEPS, STEPS)
        assert worker["iterations"] == 3 * STEPS


@pytest.mark.parametrize("options", SYNC, ids=["sync", "zero"])
def test_all_make_the_same_steps_together(tmp_path, options):
    *workers, server = run_unevenly(tmp_path, **options)
    trace = iter(server.trace)
    for step in range(STEPS):
        events = [next(trace) for _ in range(7)]
        assert all(event.clock == step for event in events)
        assert events[-1].kind == "close"
        for kind in ("pull", "push"):
            assert sorted(e.worker for e in events if e.kind == kind) == [0, 1, 2]
    assert next(trace, None) is None
    for worker in workers:
        # The sum of unscaled gradients.
        assert worker["seen"] == [weight_after(step, step, step) for step in range(STEPS)]
        assert worker["weight"] == weight_after(STEPS, STEPS, STEPS)
        assert worker["iterations"] == STEPS
