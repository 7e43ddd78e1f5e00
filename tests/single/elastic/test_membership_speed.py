"""A job re-forms quickly while no process is silent: no time of the protocol is waited for."""

from __future__ import annotations

import statistics
import time

import pytest

from single.elastic.elastic_members import Process, check, closing, founded, together
from tfdist.elastic.membership import Timing

pytestmark = [pytest.mark.timeout(60), pytest.mark.alone]


def seconds(processes: list[Process]) -> float:
    """The time in which all processes form the next generation."""
    began = time.monotonic()
    worlds = together([process.form for process in processes])
    taken = time.monotonic() - began
    check(processes, worlds)
    return taken


def test_a_planned_change():
    with closing() as processes:
        founded(processes, 4, timing=Timing())
        assert statistics.median(seconds(processes) for _ in range(9)) < 0.1


@pytest.mark.parametrize("dead", [(0,), (2,), (0, 1, 2)])
def test_a_crash(dead):
    taken = []
    for _ in range(3):
        with closing() as processes:
            founded(processes, 4, timing=Timing())
            for index in dead:
                processes[index].crash()
            taken.append(seconds([p for p in processes if p.index not in dead]))
    assert statistics.median(taken) < 0.3
