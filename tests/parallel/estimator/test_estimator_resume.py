"""The training of an Estimator that was killed continues with the batch after its checkpoint."""

from __future__ import annotations

import os
import signal

import pytest
import tensorflow as tf

from support.estimator import estimators
from support.estimator.estimators import STRATEGIES, input_fn, saved
from support.processes.ranks import start_ranks
from support.training.models import EXACT

pytestmark = pytest.mark.timeout(180)

v1 = tf.compat.v1
STEPS, EVERY, KILLED_AT = 14, 4, 7


class Kill(v1.train.SessionRunHook):
    """Kills this process after a step."""

    def __init__(self, step):
        self._left = step

    def after_run(self, run_context, run_values):
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)


def shuffled(input_context):
    return input_fn()(input_context).unbatch().shuffle(100, seed=3).batch(12)


def train(ctx, folder, killed_at=None):
    strategy = STRATEGIES["all_reduce"]()
    hooks = [Kill(killed_at)] if killed_at is not None and ctx.rank == 1 else []
    trained = estimators.make(folder, strategy, optimizer="adam", save_checkpoints_steps=EVERY)
    trained.train(shuffled, hooks=hooks, max_steps=STEPS)


def life(folder, killed_at=None):
    """Runs a job of two workers; returns whether it was killed."""
    with start_ranks(train, 2, args=(folder, killed_at)) as ranks:
        outcomes = ranks.join(timeout=60)
    if killed_at is not None:
        return any(outcome.signal == signal.SIGKILL for outcome in outcomes)
    assert all(outcome.ok for outcome in outcomes), "\n".join(o.describe() for o in outcomes)
    return False


def test_the_end_is_that_of_a_training_that_was_never_killed(tmp_path):
    life(tmp_path / "whole")
    assert life(tmp_path / "killed", KILLED_AT)
    assert estimators.checkpoints(tmp_path / "killed")[-1] == EVERY
    positions = [path.name for path in (tmp_path / "killed").glob("*.input.json")]
    assert sorted(positions) == ["model.ckpt-0.input.json", f"model.ckpt-{EVERY}.input.json"]
    assert life(
        tmp_path / "killed", 2
    )  # continues, and is killed before it has saved anything else
    life(tmp_path / "killed")
    estimators.same(saved(tmp_path / "killed"), saved(tmp_path / "whole"), EXACT)
    # A training that has ended leaves no position.
    assert not list((tmp_path / "killed").glob("*.input.json"))
