"""Hundreds of faults, drawn at random, in four kinds of elastic `fit`; none leaves a trace.

`scripts/test --soak elastic` has 200, or as many as come within an hour; each `fit` draws its own
from its name as seed. `scripts/test --soak elastic-tls` has the same with encrypted connections.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter

import numpy as np
import pytest

from support.elastic.elastic_faults import Course, Fault, Faults, check, running, undisturbed
from support.elastic.elastic_training import STEPS, VALIDATION_STEPS, Fit, SelfFault

FITS = {
    "dataset": Fit(validates=True, saves=True),
    "arrays": Fit(model="normalized", data="arrays"),
    "ledger": Fit(model="ledger"),
    "float32": Fit(model="normalized", data="arrays", dtype="float32", validates=True),
}
FAULTS = 200 // len(FITS)
# Of each `fit`: seconds after which no more faults come, and how many there have to be by then.
DRAWING, FEWEST = 11 * 60, 15
# Each with its weight. A stop takes the longest: silence shows only after a time.
KINDS = {
    "kill": 8,
    "kill rank 0": 4,
    "kill two": 4,
    "kill during recovery": 6,
    "kill around the end of an epoch": 6,
    "kill at a checkpoint": 2,
    "kill a newcomer": 4,
    "stop": 3,
    "stop and kill": 2,
    "leave": 4,
}
RECOVERY = ["forming", "formed", "agreed"]
ENDS = ["epoch end", "epoch begin", "validation begin", "validation", "validation end"]
JOINING = ["forming", "formed", "receiving", "agreed"]


def drawn(choose: random.Random, fit: Fit) -> tuple[str, Faults]:
    """Draws faults, and says of which kind they are."""
    kind = choose.choices(list(KINDS), weights=list(KINDS.values()))[0]
    rank = 0 if kind == "kill rank 0" else choose.randrange(4)
    other = (rank + choose.randrange(1, 4)) % 4
    batch = choose.randrange(STEPS)
    at_batch = choose.choice(["batch begin", "batch end"])
    restarts = choose.choice(["at once", "later"])
    if kind in ("kill", "kill rank 0", "leave", "stop", "stop and kill"):
        first = choose.choice(
            [
                Fault(kind.split()[0], rank, delay=choose.uniform(0.0, 0.1)),
                Fault(kind.split()[0], rank, at_batch, choose.randrange(2), batch),
            ]
        )
        return kind, Faults(first, restarts=restarts, kills_stopped=kind == "stop and kill")
    if kind == "kill two":
        delay, between = choose.uniform(0.0, 0.1), choose.choice([0.0, choose.uniform(0.0, 0.05)])
        return kind, Faults(
            Fault("kill", rank, delay=delay),
            Fault("kill", other, delay=between),
            restarts=restarts,
        )
    if kind == "kill during recovery":
        return kind, Faults(
            Fault("kill", rank, at_batch, choose.randrange(2), batch),
            Fault("kill", other, choose.choice(RECOVERY)),
            restarts=restarts,
        )
    if kind == "kill around the end of an epoch":
        place = choose.choice(ENDS if fit.validates else ENDS[:2])
        batch_of = choose.randrange(VALIDATION_STEPS) if place == "validation" else None
        return kind, Faults(
            Fault("kill", rank, place, choose.randrange(2), batch_of), restarts=restarts
        )
    if kind == "kill at a checkpoint" and fit.saves:
        return kind, Faults(Fault("kill", 0, "checkpoint"), restarts=restarts)
    return "kill a newcomer", Faults(
        Fault("kill", rank, delay=choose.uniform(0.0, 0.1)),
        restarts=restarts,
        joiner=SelfFault("kill", choose.choice(JOINING)),
    )


def summary(name: str, course: Course, kinds: Counter[str], repeated: int, seconds: float) -> str:
    """The faults of a `fit`, and what they have cost."""
    lines = [
        f"{name}: {course.faults} faults and {kinds['leave']} planned leaves, {course.epochs} "
        f"epochs, {seconds:.0f} s; {repeated} steps made again"
    ]
    lines += [f"  {count:4d} x {kind}" for kind, count in kinds.most_common()]
    times_of = {f"recovery after a {kind}": times for kind, times in course.recoveries.items()}
    for what, times in {**times_of, "joining": course.joins}.items():
        if times:
            lines.append(
                f"  {what}: median {statistics.median(times):.2f} s, at most {max(times):.2f} s"
            )
    return "\n".join(lines)


@pytest.mark.timeout(20 * 60)
@pytest.mark.parametrize("name", FITS)
def test_faults_leave_no_trace(name, tmp_path):
    fit = FITS[name]
    choose = random.Random(name)
    kinds: Counter[str] = Counter()
    began = time.monotonic()
    with running(fit, tmp_path) as course:
        course.begin(Faults())
        while kinds.total() < FAULTS and time.monotonic() < began + DRAWING:
            kind, faults = drawn(choose, fit)
            print(f"{kinds.total() + 1}, from epoch {course.epochs}: {faults}", flush=True)
            course.permit(faults)
            kinds[kind] += 1
        results = course.end()
    print(summary(name, course, kinds, course.repeated, time.monotonic() - began))
    assert kinds.total() >= FEWEST, f"this machine is too slow: {kinds.total()} faults"
    assert len(results) == 4
    if fit.dtype == "float32":
        without, _ = undisturbed(fit, course.epochs)
        check(fit, course, results, tolerance=2 * without, of_logs=1e-5)
    else:
        check(fit, course, results, tolerance=0.0 if fit.model == "ledger" else 1e-10)
    if fit.model == "ledger":
        for result in results.values():
            assert np.all(result.weights[0] == course.epochs)
