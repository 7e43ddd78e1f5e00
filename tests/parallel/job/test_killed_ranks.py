"""After the death of any rank, in any algorithm, all others soon name the dead rank."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest
import tensorflow as tf

from support.processes.ranks import start_ranks
from tfdist import ops
from tfdist.config.cluster import Cluster
from tfdist.job import process

# Seconds within which a rank's end must reach all others.
SOON = 2.0
SIZE, LEADERS = 4, (0, 2)
LARGE, SMALL = [1 << 19], [256]  # float32: 2 MB, 1 KB


def _tree(step):
    ops.broadcast(tf.ones(SMALL), root=step % SIZE)
    ops.reduce(tf.ones(SMALL), root=(step + 1) % SIZE)


# See docs/reference/algorithms.md; the two-level algorithm is for large tensors on two hosts.
ALGORITHMS = {
    "ring": lambda step: ops.all_reduce(tf.ones(LARGE)),
    "two-level": lambda step: ops.all_reduce(tf.ones(LARGE)),
    "recursive doubling": lambda step: ops.all_reduce(tf.ones(SMALL)),
    "tree": _tree,
}


def run_for_ever(ctx, algorithm):
    if algorithm == "two-level":
        for address in ctx.addresses[2:]:
            other = address.replace("127.0.0.1", "127.0.0.2")
            os.environ["TF_CONFIG"] = os.environ["TF_CONFIG"].replace(address, other)
    communicator = process.current.join(Cluster.from_environment()).communicator
    for step in range(10**9):
        ALGORITHMS[algorithm](step)
        if step == 10:
            elsewhere = communicator.stats().bytes_sent_to_other_hosts
            assert (elsewhere > 0) == (algorithm == "two-level" and ctx.rank in LEADERS)
            ctx.report("running")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("victim", [0, 1, 3])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_all_others_name_a_killed_rank(algorithm, victim):
    with start_ranks(run_for_ever, SIZE, args=[algorithm]) as ranks:
        for rank in range(SIZE):
            ranks.wait_for(rank, "running", timeout=60)
        time.sleep(random.uniform(0, 0.1))  # anywhere in a step
        killed_at = ranks[victim].kill()
        outcomes = ranks.join(timeout=20)
    assert outcomes[victim].signal == signal.SIGKILL
    for rank in set(range(SIZE)) - {victim}:
        assert outcomes[rank].exception == "UnavailableError", outcomes[rank].describe()
        assert f"rank {rank} of {SIZE}" in outcomes[rank].message
        assert f"lost rank {victim} (" in outcomes[rank].message
        assert outcomes[rank].finished_at - killed_at < SOON
