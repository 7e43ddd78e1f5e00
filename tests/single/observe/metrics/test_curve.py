"""Curves of the numbers that `fit` logs: of any length, in a bounded number of points."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

from tfdist.observe.metrics import curve
from tfdist.observe.metrics.curve import MAX_CURVES, MAX_POINTS, Curve, Curves


@pytest.fixture
def clock(monkeypatch):
    """The time, which a test sets."""
    now = [0.0]
    monkeypatch.setattr(curve.time, "monotonic", lambda: now[0])
    return now


def test_keeps_the_whole_training(clock):
    line = Curve()
    for step in range(1, 5001):
        clock[0] += 0.2
        line.note(step, 1 / step)
    points = line.points()
    assert MAX_POINTS / 2 <= len(points) <= MAX_POINTS
    steps = [step for step, _ in points]
    assert steps[0] == 1 and steps[-1] == 5000
    assert all(value == 1 / step for step, value in points)
    # Evenly, except for the first intervals and the newest point.
    gaps = {after - before for before, after in zip(steps[1:-1], steps[2:-1], strict=False)}
    assert max(gaps) <= 2 * min(gaps)


def test_the_newest_value_is_there_at_once(clock):
    line = Curve()
    line.note(1, 5.0)
    line.note(2, 4.0)
    assert line.points() == [(1, 5.0), (2, 4.0)]
    line.note(3, 3.0)
    # The end of an epoch has other numbers than its last step.
    line.note(3, 3.5)
    assert line.points() == [(1, 5.0), (3, 3.5)]
    clock[0] += 1
    line.note(4, 2.0)
    line.note(4, 2.5)
    assert line.points() == [(1, 5.0), (4, 2.5)]


def test_what_is_not_finite_has_no_number(clock):
    line = Curve()
    for step, value in enumerate((1.5, math.nan, math.inf, "words", None), 1):
        clock[0] += 1
        line.note(step, value)
    assert line.points() == [(1, 1.5), (2, None), (3, None), (4, None), (5, None)]


def test_all_numbers_of_the_logs_have_a_curve(clock, caplog):
    caplog.set_level("INFO", "tfdist")
    curves = Curves()
    logs = {"loss": tf.constant(2.0), "accuracy": np.float32(0.5), "f1": np.ones(3), "of": "words"}
    for step in (1, 2):
        clock[0] += 1
        curves.note(step, logs)
    curves.note(2, {"val_loss": 3.0, "accuracy": 0.25}, "val_")
    assert curves.points() == {
        "loss": [(1, 2.0), (2, 2.0)],
        "accuracy": [(1, 0.5), (2, 0.5)],
        "val_loss": [(2, 3.0)],
        "val_accuracy": [(2, 0.25)],
    }
    # Once for each.
    assert len(caplog.messages) == 2 and "no curve of 'f1', which fit logs: it is" in caplog.text


def test_the_number_of_curves_is_bounded(caplog):
    caplog.set_level("INFO", "tfdist")
    curves = Curves()
    for step in (1, 2):
        curves.note(step, {f"metric {i}": 1.0 for i in range(MAX_CURVES + 1)})
    assert len(curves.points()) == MAX_CURVES
    (text,) = caplog.messages
    assert f"no curve of 'metric {MAX_CURVES}', which fit logs: there are {MAX_CURVES}" in text
