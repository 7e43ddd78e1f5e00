"""An Estimator's training on SIGTERM: all workers end, the chief saves, and the programs end."""

from __future__ import annotations

import signal

import pytest

from support.estimator import estimators
from support.estimator.estimators import STRATEGIES, input_fn, saved
from support.processes.ranks import start_ranks
from support.ps_job import roles

pytestmark = pytest.mark.timeout(240)


class Reporting(estimators.Steps):
    """Counts and reports steps."""

    def __init__(self, ctx):
        super().__init__(slowness=0.005)
        self._ctx = ctx

    def after_run(self, run_context, run_values):
        super().after_run(run_context, run_values)
        self._ctx.report("step", self.count)


def train(ctx, kind):
    strategy = STRATEGIES[kind]()
    steps = Reporting(ctx)
    trained = estimators.make(ctx.tmp_path / "model", strategy)
    try:
        trained.train(input_fn(), hooks=[steps], max_steps=5000)
    finally:
        ctx.report("steps in all", steps.count)


@pytest.mark.long("sync", covered_by="the other cases")
@pytest.mark.long("async", covered_by="the other cases")
@pytest.mark.parametrize("kind", ["all_reduce", "async", "sync"])
def test_the_last_step_is_saved(tmp_path, kind):
    tasks = None if kind == "all_reduce" else roles(2)
    with start_ranks(
        train, 3 if tasks else 2, kwargs={"kind": kind}, roles=tasks, tmp_path=tmp_path
    ) as ranks:
        for rank in (0, 1):
            ranks.wait_for(rank, "step", 5)
        ranks[1].send_signal(signal.SIGTERM)
        outcomes = ranks.join(60)
        made = [ranks.wait_for(rank, "steps in all") for rank in (0, 1)]
    for outcome in outcomes:
        assert outcome.exit_code == 143, outcome.describe()
    for outcome in outcomes[:2]:
        assert outcome.exception == "Preempted", outcome.describe()
        assert (
            f"SIGTERM: stopped the Estimator; saved to {tmp_path}/model" in outcome.output
            or (f"SIGTERM to worker 0: stopped the Estimator; saved to {tmp_path}/model")
            in outcome.output
        ), outcome.describe()
    step = saved(tmp_path / "model")["global_step"]
    if kind == "async":
        assert step == sum(made)
    else:
        assert made[0] == made[1] == step
