"""Workers of an elastic `fit` are killed, stopped, told to leave and started again, by script.

It ends with the weights of one plain process, and no step is lost, whatever the faults are.
"""

from __future__ import annotations

import numpy as np
import pytest

from support.elastic.elastic_faults import Fault, Faults, check, suffer, undisturbed
from support.elastic.elastic_training import SEARCH, STEPS, Fit, SelfFault
from support.tiers import LONG

pytestmark = pytest.mark.timeout(240)


@pytest.mark.long("dataset", covered_by="the other cases")
@pytest.mark.parametrize("data", ["dataset", "mapped"])
def test_kills_at_batches(data, tmp_path):
    """Rank 0 in the middle of an epoch, one at the first batch of an epoch, one at any moment."""
    fit = Fit(data=data)
    course, results = suffer(
        fit,
        [
            Faults(Fault("kill", 0, "batch end", epoch=1, batch=2), restarts="never"),
            Faults(Fault("kill", 2, "batch begin", epoch=1, batch=0), restarts="never"),
            Faults(Fault("kill", 1, delay=0.01), restarts="never"),
        ],
        tmp_path,
    )
    check(fit, course, results)
    assert len(results) == 1


@pytest.mark.long(covered_by="test_kills_at_batches")
def test_two_at_once_and_another_during_recovery(tmp_path):
    fit = Fit(model="normalized", data="arrays")
    course, results = suffer(
        fit,
        [
            Faults(Fault("kill", 2, "founding", delay=0.2)),
            Faults(Fault("kill", 0, delay=0.05), Fault("kill", 1), epochs=3),
            Faults(Fault("kill", 0, "batch end", epoch=0, batch=3), Fault("kill", 1, "forming")),
            Faults(Fault("kill", 1, "batch begin", epoch=0, batch=1), Fault("kill", 0, "formed")),
            Faults(Fault("kill", 1, "batch begin", epoch=0, batch=1), Fault("kill", 2, "agreed")),
        ],
        tmp_path,
    )
    check(fit, course, results)
    assert len(results) == 4


@pytest.mark.long(covered_by="test_kills_at_batches")
def test_kills_within_tls(tmp_path):
    """Each newcomer has a new certificate; one is killed while it joins."""
    fit = Fit(model="normalized", data="arrays", validates=True)
    course, results = suffer(
        fit,
        [
            Faults(Fault("kill", 0, "batch end", epoch=1, batch=2)),
            Faults(Fault("kill", 2, "batch begin", epoch=1, batch=0), restarts="later"),
            Faults(Fault("kill", 1, delay=0.01), Fault("kill", 3)),
            Faults(Fault("kill", 1, delay=0.05), joiner=SelfFault("kill", "receiving")),
            Faults(Fault("leave", 2, "batch end", epoch=0, batch=3)),
        ],
        tmp_path,
        encrypts=True,
    )
    check(fit, course, results)
    assert len(results) == 4


@pytest.mark.long(covered_by="test_kills_at_batches")
def test_around_the_ends_of_epochs(tmp_path):
    fit = Fit(validates=True, saves=True)
    course, results = suffer(
        fit,
        [
            Faults(Fault("kill", 0, "epoch end", epoch=0), restarts="later"),
            Faults(Fault("kill", 1, "validation", epoch=0, batch=0), restarts="later"),
            Faults(Fault("kill", 0, "checkpoint", epoch=None), restarts="later"),
            Faults(Fault("kill", 2, "validation begin", epoch=1), restarts="later"),
            Faults(Fault("kill", 0, "validation end", epoch=0), restarts="later"),
        ],
        tmp_path,
    )
    check(fit, course, results)


@pytest.mark.long(covered_by="single/elastic/test_membership_partition.py")
@pytest.mark.parametrize("data", ["arrays", "dataset", "mapped"])
def test_stopped_workers_join_again(data, tmp_path):
    """In the same process, unless its shuffle cannot go back: then in a new one."""
    fit = Fit(data=data, is_quick=True)
    course, results = suffer(
        fit,
        [
            Faults(Fault("stop", 2, "batch end", epoch=1, batch=2)),
            Faults(Fault("stop", 0, delay=0.05)),
            Faults(Fault("stop", 1, "batch begin", epoch=1, batch=0), kills_stopped=True),
        ],
        tmp_path,
    )
    check(fit, course, results)
    assert len(results) == 4


@pytest.mark.long(covered_by="test_kills_at_batches, test_ledger")
def test_planned_leaves(tmp_path):
    fit = Fit(data="arrays")
    course, results = suffer(
        fit,
        [
            Faults(Fault("kill", 2, "seeding")),
            Faults(Fault("leave", 0, "batch end", epoch=1, batch=1)),
            Faults(Fault("leave", 3, delay=0.01), restarts="later"),
            Faults(Fault("leave", 2, "batch end", epoch=1, batch=STEPS - 1)),
            Faults(Fault("leave", 1, "batch begin", epoch=0, batch=STEPS - 1), restarts="later"),
        ],
        tmp_path,
    )
    check(fit, course, results)


@pytest.mark.long(covered_by="test_kills_at_batches, parallel/elastic/test_run.py")
def test_growth(tmp_path):
    """Two workers form the job; then there are four, three, one and four of them.

    Each time they begin to search the size of buckets, and the last four find it.
    """
    fit = Fit(data="mapped", searches=True)
    course, results = suffer(
        fit,
        [
            Faults(Fault("kill", 2, "founding"), Fault("kill", 3, "founding"), restarts="later"),
            Faults(Fault("leave", 3, "batch end", epoch=0, batch=1), restarts="never"),
            Faults(Fault("kill", 2, delay=0.01), Fault("kill", 1), restarts="all"),
            Faults(epochs=SEARCH // STEPS + 2),
        ],
        tmp_path,
        limits="1:4:2",
    )
    check(fit, course, results)
    assert any(course.reports(slot, "chosen") for slot in results)
    assert len(results) == 4
    sizes = max((course.sizes(slot) for slot in results), key=len)  # of a founder
    assert (sizes[0], max(sizes), min(sizes), sizes[-1]) == (2, 4, 1, 4), sizes
    assert 3 in sizes[sizes.index(4) : sizes.index(1)], sizes


@pytest.mark.long(covered_by="test_kills_at_batches")
def test_newcomers_die(tmp_path):
    fit = Fit()
    places = ("forming", "formed", "receiving", "agreed") if LONG else ("forming", "receiving")
    kill = [SelfFault("kill", place) for place in places]
    course, results = suffer(
        fit,
        [
            Faults(Fault("kill", 3, "fit begin")),
            *[Faults(Fault("kill", 1, delay=0.02), joiner=joiner) for joiner in kill],
        ],
        tmp_path,
    )
    check(fit, course, results)


def test_ledger(tmp_path):
    """The weights count how often each row was trained: once in each epoch."""
    fit = Fit(model="ledger")
    course, results = suffer(
        fit,
        [
            Faults(Fault("kill", 1, delay=1.0), restarts="never"),
            Faults(Fault("kill", 2, "batch end", epoch=1, batch=4), Fault("kill", 0, "forming")),
            Faults(Fault("leave", 0, delay=0.02), Fault("kill", 1, delay=0.02)),
        ],
        tmp_path,
    )
    check(fit, course, results, tolerance=0.0)
    for result in results.values():
        assert np.all(result.weights[0] == course.epochs)


# In float64 each kind of fault is exact.
@pytest.mark.long(covered_by="test_kills_at_batches")
@pytest.mark.parametrize("model", ["dense", "normalized"])
def test_rounding(model, tmp_path):
    """In float32 the distance from one process is at most twice that without a fault."""
    fit = Fit(model=model, dtype="float32", data="arrays")
    without, _ = undisturbed(fit, 12)
    course, results = suffer(
        fit,
        [
            Faults(Fault("kill", 3, "batch end", epoch=1, batch=4), restarts="later"),
            Faults(Fault("kill", 0, "batch begin", epoch=1, batch=3), epochs=3),
        ],
        tmp_path,
    )
    check(fit, course, results, tolerance=2 * without, of_logs=1e-5)
