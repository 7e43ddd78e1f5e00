"""Newcomers of a script of several calls that are disturbed while they read records."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest

import tfdist
from support.processes.rank_outcome import describe_all
from support.processes.ranks import start_ranks
from tfdist.elastic import record_exchange
from tfdist.elastic.states import elastic_job

pytestmark = pytest.mark.timeout(240)
ROWS, BATCH = 64, 16
ENV = {"TFDIST_ELASTIC": "1:4:2"}
CALLS = ("fit", "evaluate", "predict", "fit")


def _pause(ctx):
    """A newcomer that has the first record waits in the second until the test says "read on"."""
    if ctx.rank < 2:
        return
    reader, is_paused = record_exchange.MemberRecords, []
    original = reader._call

    def call(self, address, number, part, offset):
        if part and number == 2 and not is_paused:
            is_paused.append(True)
            ctx.report("reads", list(ctx.addresses).index(address))
            ctx.wait_for("read on", 60.0)
        return original(self, address, number, part, offset)

    reader._call = call


def _script(ctx, own=None, pauses=False):
    """Makes calls, of which `own` are another rank 2's; in the last one it waits for all."""
    import keras

    if pauses:
        _pause(ctx)
    if ctx.rank >= 2:
        ctx.wait_for("start", 60.0)
    keras.utils.set_random_seed(3)
    with tfdist.MultiWorkerMirroredStrategy().scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(40), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    x = np.random.default_rng(0).normal(size=(ROWS, 6)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    found = []
    calls = own if own and ctx.rank == 2 else CALLS
    for number, kind in enumerate(calls):
        last = number == len(CALLS) - 1
        if kind == "fit":
            callbacks = [_Waits(keras, ctx)] if last else []
            model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0, callbacks=callbacks)
        elif kind == "evaluate":
            found.append(model.evaluate(x, y, batch_size=BATCH, verbose=0))
        else:
            found.append(model.predict(x, batch_size=BATCH, verbose=0))
    return model.get_weights(), found


def _Waits(keras, ctx):  # noqa: N802 - a class that needs Keras
    class Waits(keras.callbacks.Callback):
        """The first members wait after the first batch until the test has newcomers."""

        waited = False

        def on_train_batch_end(self, batch, logs=None):
            if ctx.rank < 2 and not self.waited:
                self.waited = True
                ctx.report("in the last call")
                size = ctx.wait_for("continue", 90.0)
                job, deadline = elastic_job(), time.monotonic() + 60
                while size and job.is_leader and not job._membership.newcomers_wait():
                    assert time.monotonic() < deadline
                    job.pause(0.01)

    return Waits()


def _started(ranks, *newcomers):
    for rank in range(2):
        ranks.wait_for(rank, "in the last call", timeout=90.0)
    for rank in newcomers:
        ranks.send(rank, "start")


def _check_equal(outcomes):
    assert all(outcome.ok for outcome in outcomes), describe_all(outcomes)
    (weights, found), *others = (outcome.result for outcome in outcomes)
    for own, theirs in others:
        for left, right in zip([*weights, *found], [*own, *theirs], strict=True):
            np.testing.assert_array_equal(left, right)


def test_another_member_answers_if_one_is_killed_while_it_is_read():
    with start_ranks(_script, 3, env=ENV, kwargs={"pauses": True}) as ranks:
        _started(ranks, 2)
        victim = ranks.wait_for(2, "reads", timeout=60.0)
        ranks[victim].kill()
        ranks.send(2, "read on")
        ranks.send(1 - victim, "continue", 3)
        outcomes = ranks.join(100.0, only=[1 - victim, 2])
    _check_equal(outcomes)


@pytest.mark.long(covered_by="test_another_member_answers_if_one_is_killed_while_it_is_read")
def test_a_newcomer_ends_by_name_if_all_members_are_killed():
    with start_ranks(_script, 3, env=ENV, kwargs={"pauses": True}) as ranks:
        _started(ranks, 2)
        ranks.wait_for(2, "reads", timeout=60.0)
        for rank in range(2):
            ranks[rank].kill()
        began = time.monotonic()
        ranks.send(2, "read on")
        (outcome,) = ranks.join(90.0, only=[2])
        assert time.monotonic() < began + 60
    assert not outcome.ok
    assert "no member of the job has answered for 10 s" in outcome.describe()
    assert "start the program again" in outcome.describe()


@pytest.mark.long(covered_by="test_another_member_answers_if_one_is_killed_while_it_is_read")
def test_two_newcomers_read_at_once():
    with start_ranks(_script, 4, env=ENV) as ranks:
        _started(ranks, 2, 3)
        for rank in range(2):
            ranks.send(rank, "continue", 4)
        outcomes = ranks.join(100.0)
    _check_equal(outcomes)


@pytest.mark.long(
    "own1-kind", "own2-fewer", covered_by="the other cases, single/elastic/test_elastic_records.py"
)
@pytest.mark.parametrize(
    "own, told",
    [
        (("evaluate", "fit", "predict", "fit"), "call number 1 .*received evaluate"),
        (("fit", "predict", "evaluate", "fit"), "call number 2 .*received predict"),
        (("fit", "evaluate", "fit"), "call number 3 .*received fit"),
    ],
    ids=["own0-order", "own1-kind", "own2-fewer"],
)
def test_a_newcomer_with_another_script_ends_and_the_members_go_on(own, told):
    with start_ranks(_script, 3, env=ENV, kwargs={"own": own}) as ranks:
        _started(ranks, 2)
        (outcome,) = ranks.join(60.0, only=[2])
        assert not outcome.ok
        assert re.search(told, outcome.describe()), outcome.describe()
        assert "do all run the same program?" in outcome.describe()
        for rank in range(2):
            ranks.send(rank, "continue", 0)
        outcomes = ranks.join(60.0, only=[0, 1])
    _check_equal(outcomes)
    with start_ranks(_script, 2, env={"TFDIST_ELASTIC": "1:4:2"}) as ranks:
        _started(ranks)
        for rank in range(2):
            ranks.send(rank, "continue", 0)
        alone = ranks.join(60.0)
    _check_equal([*alone, *outcomes])
