"""Servers of tables that are killed at any moment: each acknowledged gradient counts, and once."""

from __future__ import annotations

import numpy as np
import pytest

from support.processes.ranks import start_ranks
from support.ps_job import meet, roles, served
from support.table_job import Tables
from support.training.known_gradient import ended_well, go_on, reach
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.ps.config import PsConfig
from tfdist.ps.worker import PsWorker

pytestmark = pytest.mark.timeout(240)
WORKERS, SERVERS = 2, 3
IDS = 5000
WIDTH = 4


def gradients_of(rank: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids, some of them frequent, and their gradients: the first column counts."""
    random = np.random.default_rng([rank, step])
    ids = random.zipf(1.2, 200) % IDS
    gradients = 0.1 * random.normal(size=[len(ids), WIDTH])
    gradients[:, 0] = 1
    return ids, gradients.astype(np.float32)


def train(ctx, pauses, **options):
    """Pushes the gradients of each step until the last pause; returns all rows in the end."""
    if served():
        return None
    cluster = Cluster.from_environment()
    member = PsWorker(
        cluster, PsConfig.make(cluster.world_size, **options), Settings.from_environment()
    )
    tables = Tables(member.client)
    table = tables.table("t", WIDTH)
    for step in range(1, pauses[-1] + 1):
        ids, gradients = gradients_of(ctx.rank, step)
        tables.lookup(table, ids)
        tables.push(table, ids, gradients, wait=False)
        if step in pauses:
            ctx.report("paused", step)
            if ctx.wait_for("continue", timeout=240) == "checkpoint":
                member.checkpoint()
                ctx.report("saved", step)
    member.client.flush(60)
    meet(ctx, "all is pushed")
    rows = tables.lookup(table, np.arange(IDS), training=False)
    stats = member.client.stats()
    meet(ctx, "all is read")
    member.leave()
    return rows, stats


@pytest.mark.parametrize("saved", [True, False], ids=["after a checkpoint", "without one"])
def test_no_gradient_is_lost_or_applied_twice(tmp_path, saved):
    pauses = [30, 60, 120, 200]
    options = {"pauses": pauses, "checkpoint_dir": str(tmp_path / "snapshots")}
    env = {"TFDIST_CHECKPOINT_DIR": options["checkpoint_dir"]}
    with start_ranks(
        train, WORKERS + SERVERS, kwargs=options, roles=roles(2, SERVERS), env=env
    ) as ranks:
        reach(ranks, 30, 0, 1)
        ranks.send(0, "continue", "checkpoint" if saved else None)
        if saved:
            ranks.wait_for(0, "saved", 30, timeout=60)
        go_on(ranks, 1)
        # While they push; the second time there are two logs.
        for step in (60, 120):
            reach(ranks, step, 0, 1)
            go_on(ranks, 0, 1)
            ranks[WORKERS + 1].kill()
            ranks.restart(WORKERS + 1)
        reach(ranks, 200, 0, 1)
        go_on(ranks, 0, 1)
        outcomes = ranks.join(timeout=120)
    ended_well(outcomes, workers=WORKERS)
    files = [file for file in (tmp_path / "snapshots").rglob("*") if file.is_file()]
    assert files
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    expected = np.zeros([IDS, WIDTH])
    for rank in range(WORKERS):
        for step in range(1, pauses[-1] + 1):
            ids, gradients = gradients_of(rank, step)
            np.add.at(expected, ids, -gradients.astype(np.float64))
    for outcome in outcomes[:WORKERS]:
        rows, stats = outcome.result
        np.testing.assert_array_equal(rows[:, 0], expected[:, 0])
        np.testing.assert_allclose(rows, expected, atol=1e-4, rtol=0)
        assert stats.pushes == pauses[-1]
        assert stats.reconnections == 2
