"""The text of a plan."""

from __future__ import annotations

from tfdist.plan import report
from tfdist.plan.costs import PlannedTraining, Table
from tfdist.plan.traffic import Links


def test_tables_of_tfdist_are_said_to_be_left_out():
    table = Table("users/remote_rows", rows=0, width=16, rows_per_step=58.0)
    training = PlannedTraining(1000, 0.1, Links(1e8), tables=(table,))
    text = report.text(report.Plan(training, 4))
    assert "users/remote_rows, 58 rows of 16 values a step; the plan leaves out tables" in text
