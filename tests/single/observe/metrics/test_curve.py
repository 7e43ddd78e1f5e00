"""The loss curve: of any length, in a bounded number of points."""

from __future__ import annotations

from tfdist.observe.metrics import curve
from tfdist.observe.metrics.curve import MAX_POINTS, Curve


def test_keeps_the_whole_training(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(curve.time, "monotonic", lambda: now[0])
    line = Curve()
    for step in range(1, 5001):
        now[0] += 0.2
        line.note(1 / step)
    points = line.points()
    assert MAX_POINTS / 2 <= len(points) < MAX_POINTS
    steps = [step for step, _ in points]
    assert steps[0] == 1 and steps[-1] > 4900
    assert all(value == 1 / step for step, value in points)
    # Evenly, except for the first intervals.
    gaps = {after - before for before, after in zip(steps[1:], steps[2:], strict=False)}
    assert max(gaps) <= 2 * min(gaps)


def test_what_is_not_finite_has_no_number(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(curve.time, "monotonic", lambda: now[0])
    line = Curve()
    for value in (1.5, float("nan"), float("inf")):
        now[0] += 1
        line.note(value)
    assert line.points() == [(1, 1.5), (2, None), (3, None)]
