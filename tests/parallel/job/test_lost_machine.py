"""A machine that disappears without a word: a network namespace whose link goes down."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from support.patience import wait_until
from support.processes.ranks import on_ranks, start_ranks
from support.ps_job import served
from support.table_job import Tables
from support.training.known_gradient import ended_well
from tfdist import ops
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.job import process
from tfdist.ps.config import PsConfig
from tfdist.ps.worker import PsWorker

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from baselines import namespaces

# Seconds within which both sides have to know.
SOON = 30.0
STEPS = 20
WORKER_0, WORKER_1, PS, CHIEF = range(4)


@on_ranks(2, env={"TFDIST_PEER_MEMORY": "0"})
def test_silent_connections_are_probed(ctx):
    communicator = process.current.join(Cluster.from_environment()).communicator
    ops.all_reduce(tf.ones([]))
    gathered = ops.all_gather(tf.constant([communicator.port])).numpy().tolist()
    ports = {f"{port:04X}" for port in gathered}

    def timers():
        # Fields 1 and 2 are addresses and ports, 3 the state, 5 which timer runs: see proc(5).
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return [
            line[5].partition(":")[0]
            for line in lines
            if line[3] == "01" and {field[-4:] for field in line[1:3]} & ports
        ]

    assert len(timers()) == 2
    # Until all that was sent is acknowledged another timer may run.
    wait_until(lambda: timers() == ["02", "02"], "a probe on both sides", timeout=10)
    ctx.barrier("seen")


@contextlib.contextmanager
def two_hosts() -> Iterator[namespaces.Network]:
    try:
        network = namespaces.Network(2, gigabits=1)
    except namespaces.NotPermitted as error:
        pytest.skip(f"network namespaces cannot be made here: {error}")
    with contextlib.closing(network):
        yield network


def two_jobs(ctx, hosts, addresses):
    """All-reduce and parameter servers: the even ranks are on the first host, the odd ones not."""
    here = ctx.rank % 2
    namespaces.inside(hosts[here], lambda: None)
    first, second = (f"{address}:{7000 + ctx.rank // 2}" for address in addresses)
    if ctx.rank in (WORKER_0, WORKER_1):
        body, cluster, kind, index = reduce, {"worker": [first, second]}, "worker", here
    else:
        body, cluster = push, {"chief": [second], "ps": [first]}
        kind, index = "chief" if here else "ps", 0
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": cluster, "task": {"type": kind, "index": index}}
    )
    return body(ctx)


def reduce(ctx):
    """Worker 1 waits, with nothing on its way; worker 0 has unacknowledged data."""
    process.current.join(Cluster.from_environment())
    ops.all_reduce(tf.ones([]))
    ctx.report("ready")
    if ctx.rank == WORKER_0:
        ctx.wait_for("continue", timeout=120)
    while True:
        ops.all_reduce(tf.ones([]))


def push(ctx):
    """Pushes until the link is up again, and then `STEPS` times."""
    if served():
        return None
    member = PsWorker(Cluster.from_environment(), PsConfig.make(1), Settings.from_environment())
    tables = Tables(member.client)
    table = tables.table("t", 1)
    tables.lookup(table, [1])
    ctx.report("ready")
    pushed, left = 0, STEPS
    while left:
        tables.push(table, [1], [[-1.0]], wait=False)
        tables.lookup(table, [1])  # comes when the server answers
        pushed += 1
        left -= (ctx.tmp_path / "plugged in").exists()
    member.client.flush(60)
    value = tables.lookup(table, [1])
    member.leave()
    return pushed, value


# It waits for half a minute.
@pytest.mark.long(covered_by="test_silent_connections_are_probed")
@pytest.mark.timeout(150)
def test_both_sides_know_soon_and_servers_go_on(tmp_path):
    env = {"TFDIST_RENDEZVOUS_TIMEOUT": "100"}
    with two_hosts() as network:
        arguments = [network.hosts, network.addresses]
        with start_ranks(two_jobs, 4, args=arguments, env=env) as ranks:
            for rank in (WORKER_0, WORKER_1, CHIEF):
                ranks.wait_for(rank, "ready", timeout=60)
            outputs = {rank: ranks[rank].assignment.output for rank in (PS, CHIEF)}
            network.set_link(1, "down")
            pulled = time.monotonic()
            ranks.send(WORKER_0, "continue")
            for rank, line in ((PS, "waiting for chief"), (CHIEF, "lost ps 0")):
                wait_until(
                    lambda: line in outputs[rank].read_text(),  # noqa: B023
                    line,
                    SOON - (time.monotonic() - pulled),
                )
                print(rank, time.monotonic() - pulled, outputs[rank].read_text()[-900:])
            network.set_link(1, "up")
            (ranks[CHIEF].assignment.tmp_path / "plugged in").touch()
            outcomes = ranks.join(timeout=60)
    for rank in (WORKER_0, WORKER_1):
        assert outcomes[rank].exception == "UnavailableError", outcomes[rank].describe()
        assert f"lost rank {1 - rank} (" in outcomes[rank].message
        assert outcomes[rank].finished_at - pulled < SOON
    ended_well([outcomes[CHIEF]], workers=4)
    pushed, value = outcomes[CHIEF].result
    np.testing.assert_array_equal(value, [[pushed]])
