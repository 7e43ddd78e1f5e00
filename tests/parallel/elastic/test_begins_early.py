"""Two of three workers begin a job when the time for the last one is over; it joins them later."""

from __future__ import annotations

import pytest

from parallel.elastic.elastic_loops import check, train
from support.processes.ranks import start_ranks

pytestmark = pytest.mark.timeout(180)
ENV = {"TFDIST_ELASTIC": "2:3:3", "TFDIST_ELASTIC_START_TIMEOUT": "2"}
LATE = 2


def come(ctx, **options):
    if ctx.rank == LATE:
        ctx.wait_for("go", 60.0)
    return train(ctx, **options)


def test_two_of_three_train_and_the_third_joins():
    with start_ranks(come, 3, kwargs={"until_size": 3}, env=ENV) as ranks:
        ranks.wait_for(0, "step")
        ranks.send(LATE, "go")
        outcomes = ranks.join(60.0)
    assert all(outcome.ok for outcome in outcomes), "\n".join(
        outcome.describe() for outcome in outcomes
    )
    results = [outcome.result for outcome in outcomes]
    check(results)
    assert [result["sizes"] for result in results] == [[2, 3], [2, 3], [3]]
    # They have begun once, and lost nothing when the third came.
    assert results[0]["begun"] == list(range(results[0]["steps"]))
    for outcome in outcomes[:2]:
        assert "the job begins with 2 of 3 processes, 2 s after 2 had come" in outcome.output
