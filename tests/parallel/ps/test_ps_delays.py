"""Compensation of delayed gradients, and workers that are too slow to wait for."""

from __future__ import annotations

import math
import time

import keras
import pytest

from parallel.ps.ps_records import serve_and_tell
from parallel.ps.scripted_loop import ScriptedLoop
from support.processes.ranks import start_ranks
from support.ps_job import on_job, roles
from support.training.known_gradient import BASE, hear, tell, weight_after

pytestmark = pytest.mark.timeout(180)
GRADIENTS = (1.0, 2.0)
LAMBDA = 0.5
MODES = {
    "async": {"mode": "async"},
    "hogwild": {"mode": "async", "hogwild": True},
    "infinite": {"mode": "ssp", "staleness": math.inf},
    "ssp": {"mode": "ssp", "staleness": 3},
}


def interleave(ctx, **options):
    """Makes steps that lie within others.

    After a first one of the chief, three of its steps lie within one of worker 0, and two of worker
    0 within one of the chief.

    Returns:
      The weights after: the chief's three steps, the one around them, worker 0's two, the one
      around them. `None` for the weights that the other worker has seen.
    """
    loop = ScriptedLoop(GRADIENTS[ctx.rank], **options)

    def steps(count, within=lambda: None):
        for _ in range(count):
            loop.step(within)
        loop.settle()
        return loop.weight

    def around(begun, until):
        return lambda: (tell(ctx, begun), hear(ctx, until))

    if ctx.rank == 0:
        steps(1)
        tell(ctx, "begun")
        hear(ctx, "worker 0 has pulled")
        first = steps(3)
        tell(ctx, "first")
        hear(ctx, "second")
        fourth = steps(1, around("the chief has pulled", "third"))
        return first, None, None, fourth
    hear(ctx, "begun")
    second = steps(1, around("worker 0 has pulled", "first"))
    tell(ctx, "second")
    hear(ctx, "the chief has pulled")
    third = steps(2)
    tell(ctx, "third")
    return None, second, third, None


def weights_were(*expected):
    def check(results):
        chief, worker, _ = results
        seen = [a if b is None else b for a, b in zip(chief, worker, strict=True)]
        assert seen == pytest.approx(expected, rel=1e-14)

    return check


def interleaved(ctx, mode, **options):
    records = serve_and_tell()
    if records is None:
        return interleave(ctx, **MODES[mode], **options)
    assert (records.stats.pushes, records.stats.dropped_pushes) == (8, 0)
    return None


@pytest.mark.parametrize("mode", MODES)
@on_job(2, check=weights_were(-4.0, -6.0, -10.0, -11.0))
def test_delay_alone_changes_no_gradient(ctx, mode):
    return interleaved(ctx, mode)


@pytest.mark.parametrize("mode", ["async", "ssp"])
@on_job(
    2,
    check=weights_were(
        -4.0,
        # The delayed gradient g of 2 becomes g + LAMBDA g^2 (now - then): 2 - 0.5 * 4 * 3.
        -4.0 + 4.0,
        0.0 - 4.0,
        # The gradient of 1 becomes, after the two steps, 1 - 0.5 * 4.
        -4.0 + 1.0,
    ),
)
def test_dc_asgd(ctx, mode):
    """Zheng et al. 2017."""
    return interleaved(ctx, mode, compensation="dc-asgd", compensation_lambda=LAMBDA)


def revised(results):
    """As `interleave` says: the gradients 1, (2 around 1, 1, 1), (1 around 2, 2)."""
    root = math.sqrt
    first = -1 / root(2) - 1 / root(3) - 1 / root(4) - 1 / root(5)
    # z = 5 + 2 * 2 + 2 * 2 * 3, with the backward gradient 3, whose step is revised from root 5.
    second = first - 2 / root(21) + 3 / root(5) - 3 / root(21)
    third = second - 2 / root(25) - 2 / root(29)
    # z = 29 + 1 + 2 * 4.
    fourth = third - 1 / root(38) + 4 / root(29) - 4 / root(38)
    chief, worker, _ = results
    seen = [a if b is None else b for a, b in zip(chief, worker, strict=True)]
    assert seen == pytest.approx([first, second, third, fourth], rel=1e-6)


@on_job(2, check=revised)
def test_adaptive_revision(ctx):
    """McMahan and Streeter 2014."""

    def adagrad():
        return keras.optimizers.Adagrad(1.0, initial_accumulator_value=1.0)

    return interleaved(ctx, "async", compensation="adaptive-revision", optimizer=adagrad)


@pytest.mark.parametrize("mode", ["async", "hogwild", "ssp"])
@on_job(
    2,
    check=weights_were(
        -4.0,
        # After t updates, d of them since the pull, the rate is sqrt(t / (t + d)).
        -4.0 - 2.0 * math.sqrt(4 / 7),
        -8.0 - 2.0 * math.sqrt(4 / 7),
        -8.0 - 2.0 * math.sqrt(4 / 7) - math.sqrt(7 / 9),
    ),
)
def test_adadelay(ctx, mode):
    """Sra et al. 2016: the delay's part of the step size."""
    return interleaved(ctx, mode, compensation="adadelay")


PACE = 0.05
FAST_STEPS = 60
SLOW_STEPS = 4  # ten times as long, and over before the others'


def keep_pace(ctx, **options):
    """Ranks 0 and 1 make steps of PACE seconds; rank 2, if there is one, slower ones."""
    records = serve_and_tell(10_000)
    if records is not None:
        return records
    is_slow = ctx.rank == 2
    loop = ScriptedLoop(2 * BASE**ctx.rank, mode="sync", **options)
    ctx.report("ready")
    ctx.wait_for("go", timeout=60)
    start = time.monotonic()
    for _ in range(SLOW_STEPS if is_slow else FAST_STEPS):
        loop.step(lambda: time.sleep(10 * PACE if is_slow else PACE))
    loop.settle()
    return {
        "seconds": time.monotonic() - start,
        "weight": loop.weight,
        "iterations": loop.iterations,
        "dropped": loop.strategy.communication_stats().dropped_pushes,
    }


def test_two_of_three_do_not_wait_for_a_slow_third():
    """Both jobs run at the same time, so that other load on the machine slows both."""
    backed = start_ranks(keep_pace, 4, roles=roles(3), kwargs={"num_aggregate": 2})
    alone = start_ranks(keep_pace, 3, roles=roles(2))
    with backed as backed_ranks, alone as alone_ranks:
        workers = [(backed_ranks, 0), (backed_ranks, 1), (backed_ranks, 2)]
        workers += [(alone_ranks, 0), (alone_ranks, 1)]
        for ranks, rank in workers:
            ranks.wait_for(rank, "ready", timeout=60)
        for ranks, rank in workers:
            ranks.send(rank, "go")
        outcomes = backed_ranks.join(timeout=60) + alone_ranks.join(timeout=60)
    assert all(outcome.ok for outcome in outcomes), "\n".join(o.describe() for o in outcomes)
    first, second, slow, server, *others, _ = (outcome.result for outcome in outcomes)
    for fast, other in zip((first, second), others, strict=True):
        assert other["seconds"] / fast["seconds"] >= 0.85
        assert fast["seconds"] >= FAST_STEPS * PACE
        # The mean of two is scaled to three: 2 becomes 3. The slow one's is in no step.
        assert fast["weight"] == weight_after(3 * FAST_STEPS, 3 * FAST_STEPS)
        assert other["weight"] == weight_after(2 * FAST_STEPS, 2 * FAST_STEPS)
        assert (fast["iterations"], fast["dropped"]) == (FAST_STEPS, 0)
    assert slow["dropped"] == SLOW_STEPS
    assert (server.stats.dropped_pushes, server.stats.clock) == (SLOW_STEPS, FAST_STEPS)
    pushes = [(event.kind, event.worker) for event in server.trace if event.kind != "pull"]
    assert pushes.count(("drop", 2)) == SLOW_STEPS
    steps = [kind for kind, _ in pushes if kind != "drop"]
    assert steps == ["push", "push", "close"] * FAST_STEPS
