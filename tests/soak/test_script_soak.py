"""Ten scripts of public kind, each with at least 20 faults drawn at random; none leaves a trace.

`scripts/test --soak scripts` runs it. A course again, by hand, with its files and logs kept:

    python tests/support/script_faults/torture.py two_stage --seeds 7 --folder runs
"""

from __future__ import annotations

import time
from collections import Counter

import pytest

from support.script_faults.script_course import NAMES, run, run_alone
from support.script_faults.script_drawing import drawn
from support.script_faults.script_results import differences
from support.warm_python import interpreter

FAULTS = 20
# Seconds after which no more courses of a script begin.
DRAWING = 25 * 60
# Seconds after each step. A script then lasts as long as a killed worker needs to come back.
PAUSE = 0.05


@pytest.mark.timeout(DRAWING + 10 * 60)
@pytest.mark.parametrize("name", NAMES)
def test_faults_leave_no_trace(name, tmp_path):
    alone = run_alone(name, tmp_path / "alone", interpreter())
    reached = alone.reached(alone.folder / "places-0-0")
    kinds: Counter[str] = Counter()
    broken: list[str] = []
    began = time.monotonic()
    seed = 0
    while kinds.total() < FAULTS and time.monotonic() < began + DRAWING:
        course = drawn(f"{name} {seed}", reached, PAUSE)
        print(f"{name}, seed {seed}: {course}", flush=True)
        found = run(name, course, tmp_path / f"seed {seed}", interpreter())
        kinds += Counter(fault.kind for fault in found.came)
        result = differences(alone, found)
        print(f"    {'BROKEN' if result else 'ok'}, {found.seconds:.1f} s", flush=True)
        if result:
            print(*(f"    {text}" for text in result), found.last_lines(), sep="\n", flush=True)
        broken += [f"seed {seed}, {course}: {text}" for text in result]
        seed += 1
    seconds = time.monotonic() - began
    print(f"{name}: {kinds.total()} faults in {seed} runs, {seconds:.0f} s: {dict(kinds)}")
    assert not broken, "\n".join(broken)
    assert kinds.total() >= FAULTS, f"this machine is too slow: {kinds.total()} faults"
