"""The start and the end of a parameter server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tfdist
from support.processes.ranks import start_ranks
from support.ps_job import roles
from support.training.known_gradient import (
    checkpoint,
    ended_well,
    go_on,
    reach,
    steps_in,
    train,
    weight_after,
)
from tfdist.ps.checkpoint import snapshot

pytestmark = pytest.mark.timeout(240)
WEIGHT = "sequential/slope/weight"


def latest_steps(root: Path, workers: int) -> tuple[list[int], int]:
    """Returns the steps by worker that the latest snapshot has, and its count of all."""
    shards = snapshot.read_latest(snapshot.directory(str(root), 0, 1)).shards
    (iterations,) = (v for name, v in shards.items() if name.endswith("iteration"))
    return steps_in(float(shards[WEIGHT][0]), workers), int(iterations[0])


def test_what_is_trained_after_the_chief_has_left_is_saved_too(tmp_path):
    root = tmp_path / "snapshots"
    options = {"pauses": [(10,), (10, 30)], "checkpoint_dir": str(root)}
    with start_ranks(train, 3, kwargs=options, roles=roles(2)) as ranks:
        reach(ranks, 10, 0, 1)
        go_on(ranks, 0)
        ranks.join(timeout=30, only=[0])
        assert latest_steps(root, 2) == ([10, 10], 20)
        go_on(ranks, 1)
        reach(ranks, 30, 1)
        go_on(ranks, 1)
        outcomes = ranks.join(timeout=60)
    ended_well(outcomes, workers=2)
    assert latest_steps(root, 2) == ([10, 30], 40)


def test_a_server_told_to_end_writes_a_snapshot_and_loses_nothing(tmp_path):
    root = tmp_path / "snapshots"
    options = {"pauses": [(10, 20)] * 2, "checkpoint_dir": str(root)}
    with start_ranks(train, 3, kwargs=options, roles=roles(2)) as ranks:
        reach(ranks, 10, 0, 1)
        ranks[2].send_signal(signal.SIGTERM)
        (ended,) = ranks.join(timeout=30, only=[2])
        assert ended.exit_code == 128 + signal.SIGTERM, ended.describe()
        assert f"ps 0: wrote {root}/ps-0-of-1/snapshot-00000001.npz" in ended.output
        assert latest_steps(root, 2) == ([10, 10], 20)
        ranks.restart(2)
        go_on(ranks, 0, 1)
        reach(ranks, 20, 0, 1)
        go_on(ranks, 0, 1)
        outcomes = ranks.join(timeout=60)
    ended_well(outcomes, workers=2)
    for outcome in outcomes[:2]:
        assert outcome.result["weight"] == weight_after(20, 20)
        assert outcome.result["iterations"] == 40
    # The chief's end is also a checkpoint.
    assert latest_steps(root, 2) == ([20, 20], 40)


@pytest.mark.long(covered_by="test_what_is_trained_after_the_chief_has_left_is_saved_too")
def test_a_server_ends_without_its_chief(tmp_path):
    root, endless = tmp_path / "snapshots", 10**6
    options = {"pauses": [(10, 20), (10, endless)], "checkpoint_dir": str(root)}
    env = {"TFDIST_RENDEZVOUS_TIMEOUT": "8"}
    with start_ranks(train, 3, kwargs=options, roles=roles(2), env=env) as ranks:
        reach(ranks, 10, 0, 1)
        killed_at = ranks[0].kill()
        go_on(ranks, 1)
        (server,) = ranks.join(timeout=60, only=[2])
        chief, worker, _ = ranks.join(timeout=60)
        address = ranks[0].assignment.addresses[0]
    assert chief.signal == signal.SIGKILL
    assert server.exit_code == 1, server.describe()
    assert f"chief at {address} is gone, or never came: expected it within 8 s" in server.output
    assert 8 <= server.finished_at - killed_at < 25
    # The other worker continued until then, and its last steps are in the snapshot.
    (of_chief, of_worker), iterations = latest_steps(root, 2)
    assert of_chief == 10 and of_worker > 20
    assert iterations == of_chief + of_worker
    assert worker.exception == "UnavailableError", worker.describe()
    assert "ps 0 at" in worker.message and "was not there within 8 s" in worker.message


@pytest.mark.parametrize("damage", ["truncated", "altered", "empty"])
def test_a_damaged_snapshot_is_refused_and_the_one_before_is_used(tmp_path, damage):
    folder = snapshot.directory(str(tmp_path), 0, 1)
    for number, steps in ((6, 3), (7, 5)):
        shards = {WEIGHT: np.array([weight_after(steps)])}
        latest = Path(
            snapshot.write(folder, snapshot.Snapshot(number, shards, np.zeros(0, np.uint64)))[
                "file"
            ]
        )
    whole = latest.read_bytes()
    at = whole.index(np.float64(weight_after(5)).tobytes())
    latest.write_bytes(
        {
            "truncated": whole[: len(whole) // 2],
            "altered": whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :],
            "empty": b"",
        }[damage]
    )
    options = {"pauses": [(4,)], "checkpoint_dir": str(tmp_path)}
    with start_ranks(train, 2, kwargs=options, roles=roles(1)) as ranks:
        began = ranks.wait_for(0, "began with", timeout=60)
        reach(ranks, 4, 0)
        go_on(ranks, 0)
        outcomes = ranks.join(timeout=60)
    ended_well(outcomes, workers=1)
    assert began["weight"] == weight_after(3)
    assert outcomes[0].result["weight"] == weight_after(3 + 4)
    log = outcomes[1].output
    reason = {"altered": "Bad CRC-32", "truncated": "not a zip file", "empty": "No data left"}
    assert f"snapshot {latest} is damaged: " in log and reason[damage] in log
    assert f"ps 0: continues from snapshot 6 in {folder}" in log
    assert latest_steps(tmp_path, 1) == ([7], 4)


def test_no_usable_snapshot_ends_the_job(tmp_path):
    folder = Path(snapshot.directory(str(tmp_path), 0, 1))
    folder.mkdir(parents=True)
    (folder / "snapshot-00000001.npz").write_bytes(b"PK\x03\x04 and no more" * 10)
    options = {"pauses": [(4,)], "checkpoint_dir": str(tmp_path)}
    with start_ranks(train, 2, kwargs=options, roles=roles(1)) as ranks:
        worker, server = ranks.join(timeout=60)
    assert server.exit_code == 1
    for text in (worker.message, server.output):
        assert f"no usable snapshot in {folder}: " in text
        assert "snapshot-00000001.npz is damaged: File is not a zip file" in text
    assert "TfdistError" in worker.bases, worker.describe()


def train_beside_a_module(ctx, **options):
    """The `ps` tasks are processes of `python -m tfdist.server`."""
    if tfdist.Cluster.from_environment().task_type != "ps":
        return train(ctx, **options)
    search = os.pathsep.join(path or os.getcwd() for path in sys.path)
    environment = {
        **os.environ,
        "PYTHONPATH": search,
        "TFDIST_CHECKPOINT_DIR": options["checkpoint_dir"],
    }
    with subprocess.Popen([sys.executable, "-m", "tfdist.server"], env=environment) as server:
        try:
            return server.wait(100)
        finally:
            server.kill()


@pytest.mark.long(covered_by="test_a_server_told_to_end_writes_a_snapshot_and_loses_nothing")
def test_the_server_module_serves(tmp_path):
    root = tmp_path / "snapshots"
    options = {"pauses": [(10, 15)] * 2, "checkpoint_dir": str(root)}
    with start_ranks(train_beside_a_module, 3, kwargs=options, roles=roles(2)) as ranks:
        reach(ranks, 10, 0, 1)
        checkpoint(ranks, 0, 1)
        assert latest_steps(root, 2) == ([10, 10], 20)
        go_on(ranks, 0, 1)
        reach(ranks, 15, 0, 1)
        go_on(ranks, 0, 1)
        outcomes = ranks.join(timeout=60)
    assert all(outcome.ok for outcome in outcomes), "\n".join(o.describe() for o in outcomes)
    assert [outcome.result["weight"] for outcome in outcomes[:2]] == [weight_after(15, 15)] * 2
    assert outcomes[2].result == 0
    assert latest_steps(root, 2) == ([15, 15], 30)
