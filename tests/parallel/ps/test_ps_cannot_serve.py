"""A parameter server that cannot serve: the workers get its reason, in seconds."""

from __future__ import annotations

import socket
import time

import pytest

from support.processes.ranks import start_ranks
from support.ps_job import roles
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.ps import server
from tfdist.ps.config import PsConfig
from tfdist.ps.worker import PsWorker

pytestmark = pytest.mark.timeout(180)
LATER = 4.0  # s


def attach(ctx):
    """Returns the server's exit code, or the worker's error and after how many seconds it came."""
    cluster, settings = Cluster.from_environment(), Settings.from_environment()
    if cluster.task_type == "ps":
        try:
            server.serve(cluster, settings)
        except SystemExit as ending:
            return ending.code
    if ctx.rank:  # the others come after the first one was refused
        ctx.wait_for("continue", timeout=60)
    began = time.monotonic()
    try:
        PsWorker(cluster, PsConfig.make(2, checkpoint_dir=settings.checkpoint_dir), settings)
    except Exception as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - began
    finally:
        ctx.report("ended")


def refused_job(reason, **env):
    with start_ranks(attach, 3, roles=roles(2), env=env) as ranks:
        ranks.wait_for(0, "ended", timeout=60)
        # The other worker comes later: it finds the server there, or ended already.
        came_at = time.monotonic() + LATER
        while ranks[2].alive and time.monotonic() < came_at:
            time.sleep(0.1)
        ranks.send(1, "continue")
        outcomes = ranks.join(timeout=60)
    for outcome in outcomes[:2]:
        message, seconds = outcome.result
        assert "RefusedError: " in message and "called ps 0 at " in message, message
        assert "it cannot serve, and ends: " in message and reason in message
        assert seconds < 40
    assert outcomes[2].result == 1
    assert reason in outcomes[2].output


def test_a_file_in_the_place_of_its_folder(tmp_path):
    path = tmp_path / "file"
    path.touch()
    reason = f"checkpoint_dir: expected a place to write {path}"
    refused_job(reason, TFDIST_CHECKPOINT_DIR=str(path), TFDIST_RENDEZVOUS_TIMEOUT="60")


def test_a_data_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused_job(port, TFDIST_RENDEZVOUS_TIMEOUT="60", TFDIST_DATA_PORT=port)


@pytest.mark.long(
    covered_by="test_a_file_in_the_place_of_its_folder, test_a_data_port_that_is_taken"
)
def test_metrics_that_cannot_be_served():
    """Its own port is the variable's, plus the number of its task."""
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        env = {"TFDIST_METRICS_PORT": str(port - 2), "TFDIST_RENDEZVOUS_TIMEOUT": "60"}
        refused_job(str(port), **env)
