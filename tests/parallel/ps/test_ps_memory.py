"""A parameter server with a memory budget refuses new rows and serves existing ones."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.ps_job import meet, on_job, served
from support.table_job import Tables
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.ps.config import PsConfig
from tfdist.ps.stats import report
from tfdist.ps.worker import PsWorker

WIDTH = 64
BATCH = 2000


@on_job(2, 1, env={"TFDIST_PS_MEMORY": "32M"})
def test_a_table_that_outgrows_the_budget(ctx):
    if served():
        return
    cluster = Cluster.from_environment()
    member = PsWorker(cluster, PsConfig.make(2), Settings.from_environment())
    tables = Tables(member.client)
    users = tables.table("users", WIDTH)
    if ctx.rank == 0:
        with pytest.raises(tf.errors.ResourceExhaustedError) as refused:
            for first in range(0, 10**6, BATCH):
                tables.lookup(users, np.arange(first, first + BATCH))
        assert first > 10 * BATCH
        assert "parameter server 0, asked by chief: out of memory" in refused.value.message
        assert "a lookup in table 'users' needs " in refused.value.message
        assert "of its memory budget of 32.0M (TFDIST_PS_MEMORY)" in refused.value.message
    meet(ctx, "it is full")
    # The server is alive: both workers look up and train existing rows.
    before = tables.lookup(users, np.arange(BATCH))
    meet(ctx, "looked up")
    tables.push(users, np.arange(BATCH), np.ones([BATCH, WIDTH]))
    meet(ctx, "pushed")
    after = tables.lookup(users, np.arange(BATCH))
    np.testing.assert_allclose(after, before - 2, atol=1e-5)
    tables.lookup(users, np.arange(10**7, 10**7 + BATCH), training=False)
    with pytest.raises(tf.errors.ResourceExhaustedError, match="asked by .*'users'"):
        tables.lookup(users, np.arange(2 * 10**7, 2 * 10**7 + 20 * BATCH))
    reading = member.readings()[0]
    assert reading["server"]["memory_budget"] == 32 << 20
    assert 16 << 20 < reading["server"]["memory_held"] <= 32 << 20
    assert "M of 32.0M  " in report.describe(cluster.ps, [None], [reading])
    meet(ctx, "all is seen")
    member.leave()


@on_job(1, 1, env={"TFDIST_PS_MEMORY": "8M"})
def test_a_variable_beyond_the_budget(ctx):
    if served():
        return
    strategy = tfdist.ParameterServerStrategy()
    with strategy.scope():
        small = tf.Variable(tf.ones([1000]), name="small")
        with pytest.raises(tf.errors.ResourceExhaustedError, match="the creation of .*'large"):
            tf.Variable(tf.ones([4 << 20]), name="large")
    small.assign(tf.fill([1000], 2.0))
    assert small.numpy()[0] == 2
