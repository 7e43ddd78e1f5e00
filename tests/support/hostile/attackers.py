"""Attacks a job for a time, and compares it with an undisturbed one."""

from __future__ import annotations

import contextlib
import random
import secrets
import threading
import time
from collections import Counter
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np

from support.hostile.attacked_job import AttackedJob, MemoryWatch, make_snapshots
from support.hostile.attacks import ANSWERED, KINDS, LEFT, REFUSED, Target
from support.hostile.sanitized_library import QUARANTINE, SanitizedLibrary
from support.patience import wait_until

_SEED = 20261127
_PAUSE = 0.02  # s of a worker after each step
# Seconds between the attackers' end and the last look at the memory; freed memory is given back
# meanwhile.
_SETTLING = 5.0
# MB by which the memory of two undisturbed jobs differs, and that freed memory keeps.
QUIET = 24 + QUARANTINE
# Files that the servers may have open in the end and had not before: of snapshots, and of calls.
SPARE_DESCRIPTORS = 16


def check_under_attack(folder: Path, with_secret: bool, seconds: float) -> None:
    """Attacks a job for a time; prints a table, and asserts that nothing has come of it.

    Args:
      folder: an empty one, for everything.
      with_secret: whether the job has a secret.
      seconds: how long it is attacked.
    """
    library = SanitizedLibrary(folder / "library")
    library.check_that_it_reports()
    snapshots = folder / "snapshots"
    make_snapshots(snapshots)
    secret = secrets.token_hex(16) if with_secret else None
    with AttackedJob(folder / "attacked", library, snapshots, secret, _PAUSE) as job:
        job.wait_until_warm()
        with MemoryWatch(job) as attacked, contextlib.ExitStack() as stack:
            targets = [stack.enter_context(contextlib.closing(each)) for each in job.targets()]
            time.sleep(_SETTLING)
            before, descriptors = attacked.latest(), job.descriptors()
            first = job.steps()
            made = _attack(job, targets, seconds)
            steps = job.steps() - first
            stack.close()
            time.sleep(_SETTLING)
            after = attacked.latest()
            limit = descriptors + SPARE_DESCRIPTORS
            wait_until(lambda: job.descriptors() <= limit, "the end of all connections")
        last = job.stop_training()
        results = job.wait_for_results(120.0)
        job.end(targets)
    with AttackedJob(folder / "quiet", library, snapshots, secret, 0.0, steps=last) as quiet:
        with MemoryWatch(quiet) as undisturbed:
            expected = quiet.wait_for_results(120.0 + seconds)
        quiet.end(quiet.targets())
    print(f"\n{steps} steps in {seconds:g} s, {'with' if with_secret else 'without'} a secret")
    print(_table(made, before, attacked, after, undisturbed))
    # A row that no batch has is NaN.
    same = [np.array_equal(results[name], expected[name], equal_nan=True) for name in expected]
    print(f"reports of sanitizers: 0; weights and rows that are equal: {sum(same)} of {len(same)}")
    assert steps > 0, "training stood still"
    assert all(same), dict(zip(expected, same, strict=True))
    assert np.isfinite(expected["rows"]).any()
    for name, counts in made.items():
        assert counts.total() > 0, f"no {name} were made"
        assert KINDS[name].may_be_answered or not counts[ANSWERED], (name, counts)
    for name in before:
        peak, bound = max(attacked.samples[name]), _bound(name, undisturbed)
        assert peak <= bound, f"{name} held {peak:.0f} MB, expected at most {bound:.0f} MB"


def _bound(name: str, undisturbed: MemoryWatch) -> float:
    """Returns the MB that a task may hold."""
    attacks = sum(kind.memory for kind in KINDS.values()) if name.startswith("ps") else 0
    return max(undisturbed.samples[name]) + QUIET + attacks


def _attack(job: AttackedJob, targets: list[Target], seconds: float) -> dict[str, Counter[str]]:
    """Runs all attackers; returns the outcomes of each kind.

    Raises:
      AssertionError: an attack has succeeded, or a task has ended.
    """
    ends = threading.Event()
    members = [name for name, kind in KINDS.items() if kind.by_member]
    attackers = [[name] for name in KINDS if name not in members] + [members]
    with ThreadPoolExecutor(len(attackers) * len(targets)) as pool:
        running = [
            pool.submit(_attempt, names, target, ends) for target in targets for names in attackers
        ]
        deadline = time.monotonic() + seconds
        try:
            while time.monotonic() < deadline and not any(future.done() for future in running):
                job.check()
                wait(running, 0.5, FIRST_EXCEPTION)
        finally:
            ends.set()
    job.check()
    made: dict[str, Counter[str]] = {name: Counter() for name in KINDS}
    for future in running:
        for (name, outcome), count in future.result().items():
            made[name][outcome] += count
    return made


def _attempt(names: list[str], target: Target, ends: threading.Event) -> Counter[tuple[str, str]]:
    """Makes attempts of some kinds, each at its rate, until the end."""
    source = random.Random(f"{_SEED} {target.server} {names}")
    outcomes: Counter[tuple[str, str]] = Counter()
    now = time.monotonic()
    due = {name: now + source.random() / KINDS[name].rate for name in names}
    while True:
        name = min(due, key=due.__getitem__)
        if ends.wait(max(0.0, due[name] - time.monotonic())):
            return outcomes
        outcomes[name, KINDS[name].attempt(target, source)] += 1
        # A slow machine makes fewer.
        due[name] = max(due[name], time.monotonic() - 1.0) + 1.0 / KINDS[name].rate


def _table(
    made: dict[str, Counter[str]],
    before: dict[str, float],
    attacked: MemoryWatch,
    after: dict[str, float],
    undisturbed: MemoryWatch,
) -> str:
    lines = [f"{'attacks':32}{'made':>9}{REFUSED:>9}{ANSWERED:>9}{LEFT:>9}"]
    for name, counts in made.items():
        columns = (counts.total(), counts[REFUSED], counts[ANSWERED], counts[LEFT])
        lines.append(f"{name:32}" + "".join(f"{count:9}" for count in columns))
    lines.append(f"{'MB':32}{'before':>9}{'peak':>9}{'after':>9}{'quiet':>9}{'bound':>9}")
    for name in before:
        quiet = max(undisturbed.samples[name])
        columns = (before[name], max(attacked.samples[name]), after[name], quiet)
        columns = (*columns, _bound(name, undisturbed))
        lines.append(f"{name:32}" + "".join(f"{figure:9.0f}" for figure in columns))
    return "\n".join(lines)
