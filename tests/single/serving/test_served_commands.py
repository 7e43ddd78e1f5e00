"""The commands as processes: a killed server, a silent server, and encryption."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.request

import pytest
import tensorflow as tf

import tfdist
from support.launching import PACKAGE
from support.patience import PATIENCE
from support.served_tables import Training, addresses, values_of, write_model
from support.warm_python import interpreter
from tfdist.cli.main import main
from tfdist.launch.ports import free_ports

pytestmark = pytest.mark.timeout(120)
IDS = list(range(100))


@contextlib.contextmanager
def servers(root, group, environment, *options):
    """Starts a process for each server, and kills what is left of them."""
    environment = {**os.environ, "PYTHONPATH": PACKAGE, "TF_CPP_MIN_LOG_LEVEL": "3", **environment}
    # Not the warm interpreter, whose processes are children of another: they are sent signals.
    command = [sys.executable, "-m", "tfdist", "ps", "serve", str(root), "--servers"]
    started = [
        subprocess.Popen(
            [*command, ",".join(group), "--index", str(index), *options], env=environment
        )
        for index in range(len(group))
    ]
    try:
        yield started
    finally:
        for process in started:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


def loaded(folder, group):
    """Loads the model once all servers answer."""
    deadline = time.monotonic() + 60 * PATIENCE
    while True:
        assert time.monotonic() < deadline
        with contextlib.suppress(tf.errors.UnavailableError):
            model = tfdist.serving.load(folder, group, timeout=10.0)
            if len(model.table_connection.answering) == len(group):
                return model
            model.table_connection.close()


@pytest.fixture
def root(tmp_path):
    training = Training(tmp_path / "snapshots")
    training.set({i: float(i) for i in IDS})
    training.save()
    return tmp_path / "snapshots"


@pytest.mark.long(
    covered_by="single/observe/metrics/test_exporter_tls.py, test_servers_of_this_machine"
)
def test_the_metrics_of_a_server(root, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TFDIST_SECRET", secrets.token_hex(32))
    (port,) = free_ports(1)
    group = addresses(1)
    with servers(root, group, {"TFDIST_METRICS_PORT": str(port)}):
        model = loaded(write_model(tmp_path / "model"), group)
        assert values_of(model, IDS) == IDS
        values_of(model, [10**12])
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read()
        capsys.readouterr()
        assert main(["top", "--once", "--targets", f"127.0.0.1:{port}"]) == 0
        model.table_connection.close()
    first, _, row = capsys.readouterr().out.splitlines()[:3]
    assert first == "1 of 1 tasks answer" and row.startswith("table server 0")
    found = dict(line.rsplit(" ", 1) for line in text.decode().splitlines() if line[0] != "#")
    labels = 'table="users",task="table server 0"'
    assert float(found[f"tfdist_ps_rows{{{labels}}}"]) == len(IDS)
    assert float(found[f"tfdist_ps_lookups_total{{{labels}}}"]) == len(IDS) + 1
    assert float(found[f"tfdist_ps_lookup_hits_total{{{labels}}}"]) == len(IDS)
    assert float(found['tfdist_ps_snapshot{task="table server 0"}']) == 1
    age = time.time() - float(found['tfdist_ps_snapshot_timestamp_seconds{task="table server 0"}'])
    assert 0 <= age < 600


@pytest.mark.long(
    covered_by="single/serving/test_model_server_of_tables.py::test_rows_come_from_servers_of_which_one_dies"
)
def test_a_killed_and_a_silent_server(root, tmp_path):
    group = addresses(3)
    with servers(root, group, {}, "--replicas", "2") as started:
        model = loaded(write_model(tmp_path / "model"), group)
        assert values_of(model, IDS) == IDS
        started[0].kill()
        assert values_of(model, IDS) == IDS
        started[0].wait()
        model.table_connection.close()
    with servers(root, group, {}, "--replicas", "2") as started:
        model = loaded(write_model(tmp_path / "model"), group)
        started[1].send_signal(signal.SIGSTOP)
        began = time.monotonic()
        assert values_of(model, IDS) == IDS  # of the other copies, after a second
        assert 0.5 < time.monotonic() - began < 5 * PATIENCE
        began = time.monotonic()
        assert values_of(model, IDS) == IDS
        assert time.monotonic() - began < 0.5 * PATIENCE
        model.table_connection.close()


CLIENT = """
import sys, tensorflow as tf, tfdist
model = tfdist.serving.load(sys.argv[1], sys.argv[2], timeout=60.0)
print(model.serve(tf.constant([3, 4], tf.int64)).numpy()[:, 0].tolist())
model.table_connection.close()
"""


@pytest.mark.long(covered_by="test_servers_of_this_machine, parallel/job/test_tls_jobs.py")
def test_encrypted_servers(root, tmp_path):
    group = addresses(1)
    environment = {
        "TFDIST_SECRET": secrets.token_hex(32),
        "TFDIST_TLS": "secret",
        # Else the two would not use the network.
        "TFDIST_PEER_MEMORY": "0",
    }
    folder = write_model(tmp_path / "model")
    # Processes of their own: encryption holds for all connections of a process.
    with servers(root, group, environment):

        def asked(**changes: str) -> subprocess.CompletedProcess[str]:
            variables = {**os.environ, "PYTHONPATH": PACKAGE, **environment, **changes}
            return subprocess.run(
                [sys.executable, "-c", CLIENT, folder, group[0]],
                env={name: value for name, value in variables.items() if value},
                capture_output=True,
                text=True,
                timeout=100,
            )

        assert asked().stdout == "[3.0, 4.0]\n"
        plain = asked(TFDIST_TLS="")
        assert "AuthenticationError" in plain.stderr, plain.stderr


def test_servers_of_this_machine(root, tmp_path):
    environment = {**os.environ, "PYTHONPATH": PACKAGE, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment.pop("TF_CONFIG", None)
    command = [sys.executable, "-m", "tfdist", "ps", "serve", str(root), "--replicas", "2"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        group = process.stdout.readline().removeprefix("servers: ").strip().split(",")
        model = loaded(write_model(tmp_path / "model"), group)
        assert len(group) == 2
        assert values_of(model, IDS) == IDS
        model.table_connection.close()
    finally:
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
        process.stdout.close()


def test_a_folder_without_a_snapshot(tmp_path):
    finished = subprocess.run(
        [interpreter(), "-m", "tfdist", "ps", "serve", str(tmp_path), "--servers", "127.0.0.1:1"],
        env={**os.environ, "PYTHONPATH": PACKAGE},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert finished.returncode == 1
    assert "tfdist ps serve: error" in finished.stderr
