"""Data tasks in an `Estimator`'s input_fn: a ledger of the records that its steps have trained."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import on_ranks
from support.ps_job import meet, on_job, served
from tfdist.data import feed

pytestmark = pytest.mark.timeout(180)
v1 = tf.compat.v1
RECORDS, TASK, BATCH = 48, 6, 4


def model_fn(features, labels, mode):
    """The weights count how often each record was trained."""
    weights = v1.get_variable("counters", [RECORDS], initializer=v1.zeros_initializer())
    loss = -tf.reduce_sum(tf.one_hot(features["i"], RECORDS) * weights)
    train = v1.train.GradientDescentOptimizer(1.0).minimize(loss, v1.train.get_global_step())
    from tfdist import estimator

    return estimator.EstimatorSpec(mode, loss=loss, train_op=train)


def input_fn(epochs):
    def make():
        data = tfdist.data.from_ranges(RECORDS, TASK, shuffle=True, seed=1, epochs=epochs)
        return data.repeat().batch(BATCH).map(lambda i: ({"i": i}, i))

    return make


def job_of(strategy, folder, steps=None):
    from tfdist import estimator

    config = estimator.RunConfig(
        str(folder),
        train_distribute=strategy,
        save_checkpoints_steps=steps,
        log_step_count_steps=None,
    )
    return estimator.Estimator(model_fn, config=config)


def counters(job):
    return np.asarray(job.get_variable_value("counters"))


@on_job(2)
def test_parameter_servers(ctx):
    if served():
        return
    job = job_of(tfdist.ParameterServerStrategy(), ctx.tmp_path / "model", 5)
    job.train(input_fn(2))
    feed.current.report()
    meet(ctx, "trained")
    if ctx.rank == 0:
        assert sum(counters(job)) > 0
        state = json.loads(feed.current.client().state())["queues"]["train"]["queue"]
        assert state["records"] == 2 * RECORDS and not state["returned"]
        saved = sorted((ctx.tmp_path / "model").glob("*.tasks.json"))
        assert 1 <= len(saved) <= 6
    meet(ctx, "read")


@pytest.mark.long(covered_by="test_parameter_servers, parallel/data/test_tasks_together.py")
@on_ranks(2)
def test_all_reduce_goes_on_from_its_checkpoint(ctx):
    """It trains to a step, and another process of the job continues with the rest."""
    strategy = tfdist.MultiWorkerMirroredStrategy()
    folder = ctx.tmp_path / "model"
    job = job_of(strategy, folder, 3)
    job.train(input_fn(4), max_steps=6)
    feed.current.report()
    ctx.barrier("trained")
    if ctx.rank == 0:
        assert (folder / "model.ckpt-6.tasks.json").is_file()
        state = json.loads((folder / "model.ckpt-6.tasks.json").read_text())
        records = state["queues"]["train"]["queue"]["records"]
        # Records that the other worker has trained since its last report may be missing.
        assert 6 * BATCH <= records <= 12 * BATCH
        assert sum(counters(job)) > 0
    ctx.barrier("read")
    job.train(input_fn(4), max_steps=18)
    if ctx.rank == 0:
        found = counters(job)
        assert min(found) > 0 and max(found) <= 3 * min(found), found
