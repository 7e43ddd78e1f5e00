"""Processes join a job, are refused, and leave."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import on_ranks, start_ranks
from tfdist import ops
from tfdist.errors import (
    AddressInUseError,
    AuthenticationError,
    ClusterConfigError,
    RendezvousTimeoutError,
)


def finish_early(ctx):
    """Rank 1 needs nothing from the others for its last collective, and comes to its end."""
    comm = tfdist.MultiWorkerMirroredStrategy().communicator
    for step in range(3):
        total = ops.all_reduce(tf.fill([5], float(step + ctx.rank)), comm)
        np.testing.assert_array_equal(total, [3.0 * step + 3] * 5)
    if ctx.rank != 1:
        ctx.wait_for("rank 1 has finished")
    last = ops.reduce(tf.fill([1000], float(ctx.rank)), comm, root=0)
    np.testing.assert_array_equal(last, [3.0 if ctx.rank == 0 else 0.0] * 1000)
    ctx.report("done")
    if ctx.rank != 1:
        ctx.wait_for("leave")


@pytest.mark.timeout(240)
def test_an_early_finisher_waits_for_the_others():
    with start_ranks(finish_early, 3) as ranks:
        ranks.wait_for(1, "done", timeout=60)
        for rank in (0, 2):
            ranks.send(rank, "rank 1 has finished")
        for rank in (0, 2):
            ranks.wait_for(rank, "done")
        assert ranks[1].alive
        for rank in (0, 2):
            ranks.send(rank, "leave")
        outcomes = ranks.join(timeout=30)
    assert all(outcome.ok for outcome in outcomes), "\n".join(o.describe() for o in outcomes)


def need_one_who_has_finished(ctx):
    comm = tfdist.MultiWorkerMirroredStrategy().communicator
    ops.all_reduce(tf.ones([5]), comm)
    if ctx.rank == 1:
        return
    ops.all_reduce(tf.ones([5]), comm, label="one too many")


@pytest.mark.timeout(240)
def test_who_needs_a_rank_that_has_finished_learns_it_at_once():
    with start_ranks(need_one_who_has_finished, 2) as ranks:
        outcomes = ranks.join(timeout=60)
    assert outcomes[1].ok, outcomes[1].describe()
    assert outcomes[0].exception == "UnavailableError", outcomes[0].describe()
    assert "all_reduce 'one too many' needs rank 1 (" in outcomes[0].message
    assert "which has finished its program" in outcomes[0].message
    assert outcomes[0].finished_at - outcomes[1].finished_at < 2


@on_ranks(2)
def test_two_strategies_share_the_job(ctx):
    first = tfdist.MultiWorkerMirroredStrategy()
    second = tfdist.MultiWorkerMirroredStrategy()
    assert first is not second
    assert first.communicator is second.communicator
    for strategy in (first, second, first):
        with strategy.scope():
            variable = tf.Variable(10.0 + ctx.rank)
        assert float(variable.numpy()) == 10.0
        reduced = strategy.reduce("SUM", tf.constant(1.0 + ctx.rank), axis=None)
        assert float(reduced) == 3.0


@on_ranks(2)
def test_another_cluster_in_the_same_process_is_refused(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    config = json.loads(os.environ["TF_CONFIG"])
    config["cluster"]["worker"][1 - ctx.rank] = "127.0.0.1:1"
    os.environ["TF_CONFIG"] = json.dumps(config)
    with pytest.raises(ClusterConfigError) as caught:
        tfdist.MultiWorkerMirroredStrategy()
    assert f"has joined a job as worker {ctx.rank}" in str(caught.value)
    assert "127.0.0.1:1" in str(caught.value)
    # The job it has joined is not disturbed.
    total = ops.all_reduce(tf.constant([1.0 + ctx.rank]), strategy.communicator)
    np.testing.assert_array_equal(total, [3.0])


@on_ranks(2, env={"TFDIST_RENDEZVOUS_TIMEOUT": "5"})
def test_different_secrets_do_not_meet(ctx):
    os.environ["TFDIST_SECRET"] = f"the secret of rank {ctx.rank}"
    if ctx.rank == 0:
        # For all it knows worker 1 may still come.
        with pytest.raises(RendezvousTimeoutError, match="worker 1"):
            tfdist.MultiWorkerMirroredStrategy()
    else:
        with pytest.raises(AuthenticationError, match="worker 1.*different shared secrets"):
            tfdist.MultiWorkerMirroredStrategy()


@on_ranks(2, env={"TFDIST_SECRET": "the same everywhere"})
def test_equal_secrets_meet(ctx):
    comm = tfdist.MultiWorkerMirroredStrategy().communicator
    np.testing.assert_array_equal(ops.all_reduce(tf.constant([1.0 + ctx.rank]), comm), [3.0])


@on_ranks(2, env={"TFDIST_RENDEZVOUS_TIMEOUT": "40"})
def test_a_port_in_use_is_an_error_at_once(ctx):
    port = int(ctx.addresses[ctx.rank].rpartition(":")[2])
    with contextlib.closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        start = time.monotonic()
        who = f"worker {ctx.rank} at {ctx.addresses[ctx.rank]}"
        with pytest.raises(AddressInUseError, match=f"{who}: port {port} is in use"):
            tfdist.MultiWorkerMirroredStrategy()
        assert time.monotonic() - start < 30
    # Free again, it is no obstacle any more.
    ctx.barrier("free")
    comm = tfdist.MultiWorkerMirroredStrategy().communicator
    np.testing.assert_array_equal(ops.all_reduce(tf.constant([1.0 + ctx.rank]), comm), [3.0])


@on_ranks(2)
def test_a_data_port_in_use_is_an_error_that_names_it(ctx):
    with contextlib.closing(socket.socket()) as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        os.environ["TFDIST_DATA_PORT"] = str(port)
        with pytest.raises(tf.errors.UnavailableError, match=f"cannot bind data port {port}"):
            tfdist.MultiWorkerMirroredStrategy()
    # It left nothing behind that would keep the next attempt from its control port.
    del os.environ["TFDIST_DATA_PORT"]
    ctx.barrier("free")
    comm = tfdist.MultiWorkerMirroredStrategy().communicator
    np.testing.assert_array_equal(ops.all_reduce(tf.constant([1.0 + ctx.rank]), comm), [3.0])


@pytest.mark.parametrize("missing", [0, 1])
@on_ranks(2, env={"TFDIST_RENDEZVOUS_TIMEOUT": "3"})
def test_a_missing_worker_is_named_at_the_deadline(ctx, missing):
    if ctx.rank == missing:
        return
    start = time.monotonic()
    with pytest.raises(RendezvousTimeoutError) as caught:
        tfdist.MultiWorkerMirroredStrategy()
    assert 2.5 < time.monotonic() - start < 30
    assert f"worker {missing}" in str(caught.value).partition("still missing")[2]
    assert ctx.addresses[missing] in str(caught.value)
