"""A newcomer waits while the leader is a unit of work behind a member that cannot take it in.

Rank 2 dies in a step which rank 1 has completed and rank 0 has not. Rank 0, which leads, is still
in that step, before which newcomers can join; rank 1 is in the next unit, an agreement without
them.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import start_ranks
from tfdist import ops
from tfdist.elastic.job import Unit

pytestmark = pytest.mark.timeout(120)
NEWCOMER = 3
TIMEOUT = 60.0


class Position:
    """A state of one variable."""

    def __init__(self) -> None:
        self.value = tf.Variable(0.0)
        self.restored = b""

    def handles(self):
        return [self.value.handle]

    def describe(self):
        return b"the position"

    def restore(self, content):
        self.restored = content

    def save(self):
        raise AssertionError("there are enough members")


class Log(logging.Handler):
    """Keeps the lines of a log."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def train(ctx):
    if ctx.rank == NEWCOMER:
        ctx.wait_for("go", TIMEOUT)
    job = tfdist.MultiWorkerMirroredStrategy().elastic_job
    state = Position()

    def add_one():
        total = ops.all_reduce(tf.ones([]), job.communicator, label="step").numpy()
        state.value.assign_add(total / job.size)

    def step(name, **options):
        return Unit(name, add_one, written=lambda: [state.value.handle], **options)

    def agree():
        # Writes nothing: rank 0 receives rank 1's earlier values.
        ops.all_reduce(tf.ones([]), job.communicator, label="agreement")

    def torn():
        total = ops.all_reduce(tf.ones([]), job.communicator, label="step").numpy()
        if job.rank == 1 and job.size == 3:
            ctx.report("has the results")
        if job.rank == 2:
            ctx.wait_for("die", TIMEOUT)
            os.kill(os.getpid(), signal.SIGKILL)
        if job.rank == 0 and job.size == 3:
            ops.all_reduce(tf.ones([]), job.communicator, label="cannot end")
        state.value.assign_add(total / job.size)

    def wait_for_newcomer():
        if job.rank == 0:
            deadline = time.monotonic() + TIMEOUT
            while not job.flags()[0]:
                assert time.monotonic() < deadline, "the newcomer does not come"
                time.sleep(0.01)
        add_one()

    if ctx.rank == NEWCOMER:
        assert job.is_newcomer
        log = Log()
        logger = logging.getLogger("tfdist.elastic")
        logger.setLevel(logging.INFO)
        logger.addHandler(log)
        assert job.enter(state)
        assert any("a newcomer: waits at worker" in line for line in log.lines), log.lines
        assert any("a newcomer: waits for the members' state" in line for line in log.lines)
        joined = rf"worker 3: joined the job: rank {job.rank} of {job.size} \(.*\) in generation"
        assert any(re.match(joined, line) for line in log.lines), log.lines
        assert state.restored == b"the position"
    else:
        job.state = state
        ctx.report("founded", job.rank)
        wait = Unit("wait", wait_for_newcomer, written=lambda: [state.value.handle])
        job.run(wait)
        job.run(Unit("torn", torn, written=lambda: [state.value.handle], admits=True))
        job.run(Unit("agreement", agree))
        assert job.size == 2, job.size  # without the newcomer
        job.run(wait)
        job.take_flags([1.0, 0.0])
    job.run(step("last", admits=ctx.rank != NEWCOMER))
    return job.rank, job.size, job.units, np.array(state.value)


def test_a_newcomer_waits_for_a_unit_that_admits_it():
    with start_ranks(train, 4, env={"TFDIST_ELASTIC": "1:4:3"}) as ranks:
        of_rank = {ranks.wait_for(each, "founded"): each for each in range(NEWCOMER)}
        ranks.send(NEWCOMER, "go", True)
        ranks.wait_for(of_rank[1], "has the results")
        ranks.send(of_rank[2], "die")
        outcomes = ranks.join(TIMEOUT)
    killed = [outcome for outcome in outcomes if not outcome.ok]
    assert [outcome.signal for outcome in killed] == [signal.SIGKILL], "\n".join(
        outcome.describe() for outcome in killed
    )
    results = sorted(outcome.result for outcome in outcomes if outcome.ok)
    units = results[0][2]
    assert results == [(rank, 3, units, 4.0) for rank in range(3)]


def come_after_fit(ctx):
    if ctx.rank == 2:
        ctx.wait_for("go", TIMEOUT)
    strategy = tfdist.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    log = Log()
    logger = logging.getLogger("tfdist.elastic")
    logger.addHandler(log)
    logger.setLevel(logging.INFO)
    x, y = np.ones((8, 2)), np.ones((8, 1))
    history = model.fit(x, y, batch_size=4, epochs=2, verbose=0).history
    ctx.report("trained")
    if ctx.rank != 2:
        ctx.wait_for("end", TIMEOUT)
    lines = [line for line in log.lines if "has left out" in line]
    return history["loss"], strategy.is_chief, lines, model.get_weights()


def test_a_worker_that_comes_after_fit_is_not_the_one_that_saves():
    """It has the logs and the weights all the same."""
    with start_ranks(come_after_fit, 3, env={"TFDIST_ELASTIC": "1:3:2"}) as ranks:
        for rank in (0, 1):
            ranks.wait_for(rank, "trained")
        ranks.send(2, "go")
        ranks.wait_for(2, "trained")
        for rank in (0, 1):
            ranks.send(rank, "end")
        outcomes = ranks.join(TIMEOUT)
    assert all(outcome.ok for outcome in outcomes), "\n".join(o.describe() for o in outcomes)
    losses, chiefs, lines, weights = zip(*(outcome.result for outcome in outcomes), strict=True)
    assert losses[0] == losses[1] == losses[2]
    assert chiefs == (True, False, False)
    assert not lines[0] and not lines[1]
    assert len(lines[2]) == 1 and "has left out fit number 1" in lines[2][0]
    for own, other in zip(weights[2], weights[0], strict=True):
        assert np.array_equal(own, other)
