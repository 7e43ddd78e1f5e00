"""Parameter servers that are killed while `fit` runs, and started again."""

from __future__ import annotations

import json
import time

import keras
import pytest

from support.processes.ranks import start_ranks
from support.ps_job import roles
from support.training.known_gradient import (
    checkpoint,
    ended_well,
    go_on,
    reach,
    steps_in,
    train,
    wait_until,
    weight_after,
)
from tfdist.ps.checkpoint import snapshot

pytestmark = pytest.mark.timeout(240)
WORKER_TIMEOUT = 3.0


@pytest.mark.parametrize("servers", [1, 2])
def test_killed_servers_go_on_from_their_snapshots(tmp_path, servers):
    options = {"pauses": [(10, 15, 25)] * 2, "checkpoint_dir": str(tmp_path / "snapshots")}
    with start_ranks(train, 2 + servers, kwargs=options, roles=roles(2, servers)) as ranks:
        reach(ranks, 10, 0, 1)
        for server in range(servers):
            checkpoint(ranks, server, 1)
        go_on(ranks, 0, 1)
        reach(ranks, 15, 0, 1)
        for server in range(servers):
            ranks[2 + server].kill()
        for server in range(servers):
            ranks.restart(2 + server)
        go_on(ranks, 0, 1)
        reach(ranks, 25, 0, 1)
        go_on(ranks, 0, 1)
        outcomes = ranks.join(timeout=60)
    ended_well(outcomes, workers=2)
    for outcome in outcomes[:2]:
        # Five steps of each came after the snapshots.
        assert outcome.result["weight"] == weight_after(20, 20)
        assert outcome.result["iterations"] == 40
        assert outcome.result["stats"].pushes == 25
        assert outcome.result["stats"].reconnections == servers
        for server in range(servers):
            assert f"lost ps {server} at" in outcome.output
    for server in range(servers):
        assert f"ps {server}: continues from snapshot 1 in" in outcomes[2 + server].output


def saved_numbers(folder) -> int:
    """The latest checkpoint that the chief has recorded; 0 before the first."""
    manifest = folder / "manifest.json"
    return json.loads(manifest.read_text())["number"] if manifest.exists() else 0


# The mode that waits, and large snapshots.
@pytest.mark.long("large", covered_by="the other cases")
@pytest.mark.long("async", "ssp", covered_by="the other cases")
@pytest.mark.parametrize(
    "mode",
    [
        {"mode": "async"},
        {"mode": "async", "weights": 100_000},  # 0.8 MB, read out of each other's memory
        {"mode": "ssp", "staleness": 2},
        {"mode": "sync", "scale": 2},
    ],
    ids=["async", "large", "ssp", "sync"],
)
def test_a_server_killed_at_any_moment_loses_what_came_after_the_snapshot(tmp_path, mode):
    steps, folder = 400, tmp_path / "snapshots"
    options = {
        "pauses": [(20, steps)] * 2,
        "slowness": 0.004,
        "checkpoint_dir": str(folder),
        "checkpoint_every": 0.2,
        # In case that one has to make up for a lost step without the other.
        "worker_timeout": WORKER_TIMEOUT,
        **mode,
    }
    with start_ranks(train, 3, kwargs=options, roles=roles(2)) as ranks:
        reach(ranks, 20, 0, 1)
        before = saved_numbers(folder)
        go_on(ranks, 0, 1)
        wait_until(lambda: saved_numbers(folder) >= before + 3, "the third snapshot since")
        ranks[2].kill()
        dead_at = time.monotonic()
        wait_until(lambda: not ranks[2].alive, "the server's end")
        saved = snapshot.read_latest(snapshot.directory(str(folder), 0, 1)).shards
        ranks.restart(2)
        reach(ranks, steps, 0, 1)
        go_on(ranks, 0, 1)
        outcomes = ranks.join(timeout=60)
    ended_well(outcomes, workers=2)
    (saved_weight,) = (float(v[0]) for name, v in saved.items() if name.endswith("weight"))
    saved_steps = steps_in(saved_weight, 2)
    in_sync = "scale" in mode
    last = max((outcome.result for outcome in outcomes[:2]), key=lambda r: r["iterations"])
    seen = steps_in(last["weight"], 2)
    # A push is applied as a whole, and once: the counter agrees with the weight. In "sync" each
    # step counts once, and has both workers' gradients, or twice one worker's.
    assert sum(seen) == last["iterations"] * (2 if in_sync else 1)
    for rank in range(2):
        made = sum(ended_at < dead_at for ended_at in outcomes[rank].result["ends"])
        assert 20 < saved_steps[rank] <= made + 1
        # At most what was made since the snapshot, and the step that was under way. In "sync" one
        # worker may have to make a last step without the other.
        assert -in_sync <= steps - seen[rank] <= made + 1 - saved_steps[rank]
        assert in_sync or outcomes[rank].result["weight"] == last["weight"]


def test_a_server_that_stands_still_loses_nothing():
    steps = 300
    options = {"pauses": [(10, steps)] * 2, "slowness": 0.002}
    with start_ranks(train, 3, kwargs=options, roles=roles(2)) as ranks:
        reach(ranks, 10, 0, 1)
        go_on(ranks, 0, 1)
        time.sleep(0.1)  # some steps later
        ranks[2].stop()
        time.sleep(2.0)
        ranks[2].resume()
        reach(ranks, steps, 0, 1)
        go_on(ranks, 0, 1)
        outcomes = ranks.join(timeout=60)
    ended_well(outcomes, workers=2)
    for outcome in outcomes[:2]:
        assert outcome.result["weight"] == weight_after(steps, steps)
        assert outcome.result["iterations"] == 2 * steps
        assert outcome.result["stats"].reconnections == 0


def momentum():
    return keras.optimizers.SGD(1.0, momentum=0.5)


def momentum_weight(*lives: int, weight: float = 0.0) -> float:
    """Returns the weight after some steps, each with a reset momentum."""
    for steps in lives:
        velocity = 0.0
        for _ in range(steps):
            velocity = 0.5 * velocity - 1.0
            weight += velocity
    return weight


def test_slots_are_in_the_snapshot(tmp_path):
    options = {"checkpoint_dir": str(tmp_path / "snapshots")}
    result = lose_the_server(checkpointed=True, look=False, **options)
    assert result["weight"] == momentum_weight(25)
    assert result["iterations"] == 25


def test_a_server_without_snapshots_gets_back_what_was_pulled_last():
    # The last pull came before the last step; the step count is the worker's own to know.
    result = lose_the_server(checkpointed=False, look=False)
    assert result["weight"] == momentum_weight(10, weight=momentum_weight(14))
    assert result["iterations"] == 25
    # A weight that was read since is not lost; the momentum is.
    result = lose_the_server(checkpointed=False, look=True)
    assert result["weight"] == momentum_weight(15, 10)
    assert result["iterations"] == 25


def lose_the_server(checkpointed, look, **options):
    """Kills the server of one worker after its 15th step of 25."""
    options |= {"pauses": [(15, 25)], "optimizer": momentum, "look": look}
    with start_ranks(train, 2, kwargs=options, roles=roles(1)) as ranks:
        reach(ranks, 15, 0)
        if checkpointed:
            checkpoint(ranks, 0, 1)
        if look:
            go_on(ranks, 0)
            reach(ranks, 15, 0, word="looked")
        ranks[1].kill()
        ranks.restart(1)
        go_on(ranks, 0)
        reach(ranks, 25, 0)
        if look:
            go_on(ranks, 0)
            reach(ranks, 25, 0, word="looked")
        go_on(ranks, 0)
        outcomes = ranks.join(timeout=60)
    ended_well(outcomes, workers=1)
    return outcomes[0].result


def test_workers_give_a_server_without_snapshots_what_they_have():
    options = {"pauses": [(15, 25)] * 2, "look": True}
    with start_ranks(train, 3, kwargs=options, roles=roles(2)) as ranks:
        reach(ranks, 15, 0, 1)
        go_on(ranks, 0, 1)
        reach(ranks, 15, 0, 1, word="looked")
        ranks[2].kill()
        ranks.restart(2)
        go_on(ranks, 0, 1)
        reach(ranks, 25, 0, 1)
        go_on(ranks, 0, 1)
        reach(ranks, 25, 0, 1, word="looked")
        go_on(ranks, 0, 1)
        outcomes = ranks.join(timeout=60)
    ended_well(outcomes, workers=2)
    for outcome in outcomes[:2]:
        assert outcome.result["weight"] == weight_after(25, 25)
        assert outcome.result["iterations"] == 50
