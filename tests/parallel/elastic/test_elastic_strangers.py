"""A job trains, and takes in a worker, while a stranger calls all of its tasks."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from pathlib import Path

import pytest

from parallel.elastic import elastic_loops
from support.elastic.control_tasks import Background
from support.elastic.strangers import STRANGER, flood, form, leave, made_up, probe
from support.processes.ranks import start_ranks

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.long(covered_by="single/elastic/test_strangers.py"),
]
STEPS = 30


def train(ctx):
    """Trains with two workers, and after a while with three."""
    ctx.report("addresses", ctx.addresses)
    return elastic_loops.train(ctx, steps=STEPS, until_size=3)


def resident(pid: int) -> int:
    """The resident bytes of a process; 0 once it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return 1024 * int(line.split()[1])
    return 0


def attack(server: str, addresses: list[str], number: int) -> list[dict]:
    """Does all that a stranger can think of, once; returns the answers."""
    description = {"tfdist version": "0.1.0"}
    answers = [probe(server)]
    for address in ("127.0.0.1:1", *addresses):
        answers.append(form(server, {}, process=f"{number:032x}", address=address))
        described = json.loads(answers[-1].get("details", "{}")) or description
        claim = made_up(99, STRANGER)
        answers.append(form(server, described, address=address, **claim))
        answers.append(form(server, described, address=address, **claim, proof="f" * 64))
    for process in (STRANGER, "x" * 50_000):
        answers.append(leave(server, process))
    flood(server, 5, description)
    return answers


def test_a_stranger_does_all_it_can():
    env = {"TFDIST_ELASTIC": "1:4:2"}
    with start_ranks(train, 3, env=env) as ranks:
        addresses = list(ranks.wait_for(0, "addresses"))
        end = threading.Event()
        answers: list[dict] = []
        sizes: list[list[int]] = []
        pids = [ranks[rank].pid for rank in range(3)]

        def attacks(server: str) -> None:
            for number in itertools.count():
                if end.is_set():
                    return
                answers.extend(attack(server, addresses, number))
                sizes.append([resident(pid) for pid in pids])

        calls = [Background(attacks, server) for server in addresses]
        for rank in range(3):
            ranks.wait_for(rank, "step", timeout=60.0)
        before = [resident(pid) for pid in pids]
        outcomes = ranks.join(120.0)
        end.set()
        for call in calls:
            call.result()
    for outcome in outcomes:
        assert outcome.ok, outcome.describe()
    results = [outcome.result for outcome in outcomes]
    elastic_loops.check(results)
    # One was taken in, and nothing else has changed the members.
    assert sorted(result["sizes"] for result in results) in ([[2, 3], [2, 3], [3]], [[3]] * 3)
    assert len(answers) > 50
    # All are at work since then; TensorFlow itself may take 50 MB meanwhile.
    grown = [
        max(after) - size for size, after in zip(before, zip(*sizes, strict=True), strict=True)
    ]
    assert max(grown) < 50e6, grown
    assert "salt" not in json.dumps(answers)
