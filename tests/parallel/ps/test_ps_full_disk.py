"""A parameter server whose disk is full for a while, by its limit on the size of files."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from support.patience import wait_until
from support.processes.ranks import RankGroup, start_ranks
from support.ps_job import roles, served
from support.table_job import Tables
from support.training.known_gradient import ended_well, go_on, reach
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.control.client import ControlClient
from tfdist.ps.config import PsConfig
from tfdist.ps.stats import rates
from tfdist.ps.worker import PsWorker

pytestmark = pytest.mark.timeout(120)
IDS = np.arange(1000)
PUSHED = 100
PAUSES = (30, 60, 90)
FULL = 16_000  # bytes; a push takes 1.3 KB of the log, a snapshot more than 16


def train(ctx, **options):
    """Adds 1 to some rows in each step; returns the rows, how often the server agreed, and why not.

    After the first refusal it pushes no more.
    """
    if served():
        return None
    cluster = Cluster.from_environment()
    member = PsWorker(cluster, PsConfig.make(1, **options), Settings.from_environment())
    tables = Tables(member.client)
    table = tables.table("t", 1)
    tables.lookup(table, IDS)
    acknowledged, refusal = 0, None
    for step in range(1, PAUSES[-1] + 1):
        if refusal is None:
            try:
                tables.push(table, IDS[:PUSHED], -np.ones([PUSHED, 1]))
                acknowledged += 1
            except tf.errors.FailedPreconditionError as error:
                refusal = error.message
        if step in PAUSES:
            ctx.report("paused", step)
            ctx.wait_for("continue", timeout=100)
    rows = tables.lookup(table, IDS, training=False)
    member.leave()
    return rows, acknowledged, refusal


def limit_files(ranks: RankGroup, size: int) -> None:
    resource.prlimit(ranks[1].pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@contextlib.contextmanager
def job(tmp_path: Path, **options) -> Iterator[tuple[RankGroup, Callable[[], int]]]:
    """Yields a worker of a server with a full disk, and a query whether its log has failed."""
    options["checkpoint_dir"] = str(tmp_path / "snapshots")
    env = {"TFDIST_CHECKPOINT_DIR": options["checkpoint_dir"]}
    with start_ranks(train, 2, kwargs=options, roles=roles(1), env=env) as ranks:
        limit_files(ranks, FULL)
        cluster = Cluster.from_tf_config(ranks[0].assignment.environment["TF_CONFIG"])
        control = ControlClient(cluster, None, cluster.ps[0], "ps 0")
        with contextlib.closing(control):
            yield ranks, lambda: rates.ask(control)["server"]["log_failed"]


def test_all_is_kept_again_once_there_is_room(tmp_path):
    with job(tmp_path) as (ranks, log_failed):
        reach(ranks, 30, 0)
        assert log_failed() == 1
        go_on(ranks, 0)
        reach(ranks, 60, 0)
        refused = "no snapshot could be written, next try in 1 s"
        wait_until(lambda: refused in ranks[1].assignment.output.read_text(), refused)
        limit_files(ranks, resource.RLIM_INFINITY)
        wait_until(lambda: log_failed() == 0, "a snapshot", timeout=30)
        go_on(ranks, 0)
        reach(ranks, 90, 0)
        ranks[1].kill()
        ranks.restart(1)
        go_on(ranks, 0)
        outcomes = ranks.join(timeout=60)
    ended_well(outcomes, workers=1)
    rows, acknowledged, refusal = outcomes[0].result
    assert acknowledged == PAUSES[-1] and refusal is None
    np.testing.assert_array_equal(rows, acknowledged * (IDS[:, None] < PUSHED))
    assert "File too large; until a snapshot is written" in outcomes[1].output


def test_nothing_is_acknowledged_that_is_not_kept(tmp_path):
    with job(tmp_path, durability="refuse") as (ranks, log_failed):
        reach(ranks, 30, 0)
        assert log_failed() == 1
        ranks[1].kill()
        ranks.restart(1)
        for step in PAUSES[1:]:
            go_on(ranks, 0)
            reach(ranks, step, 0)
        go_on(ranks, 0)
        outcomes = ranks.join(timeout=60)
    ended_well(outcomes, workers=1)
    rows, acknowledged, refusal = outcomes[0].result
    assert 5 < acknowledged < 20 and "durability='refuse'" in refusal
    np.testing.assert_array_equal(rows, acknowledged * (IDS[:, None] < PUSHED))
