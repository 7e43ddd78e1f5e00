"""The report of `fit` for the dashboard."""

from __future__ import annotations

from tfdist.observe.metrics import fit_report
from tfdist.observe.metrics.fit_progress import FitProgress
from tfdist.observe.metrics.fit_report import FitReport


def test_short_steps_are_counted_and_seldom_noted(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(fit_report.time, "monotonic", lambda: now[0])
    report, asked = FitReport(), []

    def state():
        asked.append(report.steps)
        return FitProgress(1, 2, report.steps, None, 0.1, None, has_ended=False)

    for _ in range(1000):
        now[0] += 0.01
        report.note_step({"loss": float(report.steps)}, state)
    assert report.steps == 1000 and 90 <= len(asked) <= 110 and report.state.batch == asked[-1]
    # The end of an epoch is noted in any case.
    report.note_results({"loss": 0.5})
    report.note_results({"loss": 0.75}, "val_")
    points = report.curves.points()
    assert points["loss"][-1] == (1000, 0.5) and points["val_loss"] == [(1000, 0.75)]
