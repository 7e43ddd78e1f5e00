"""`tfdist check` of this machine, and what it says about a broken one."""

from __future__ import annotations

import json
import resource

import pytest

import tfdist.cli.main
from tfdist.check import machine
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings


@pytest.fixture(autouse=True)
def no_job(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)


def test_this_machine(capsys, tmp_path):
    code = tfdist.cli.main.main(["check", "--json", "--checkpoint-dir", str(tmp_path / "new")])
    found = json.loads(capsys.readouterr().out)
    assert code == (0 if found["ok"] else 1)
    (worker,) = found["workers"]
    assert worker["name"] == "this machine" and found["links"] == []
    assert worker["library"] and worker["flops"] > 0 and worker["free_disk"] > 0
    assert set(worker["versions"]) == {"tfdist", "TensorFlow", "Keras", "Python", "kernel"}
    assert worker["load"] >= 0 and worker["cpus"] >= 1
    assert list(tmp_path.iterdir()) == []


def test_a_broken_machine(tmp_path, monkeypatch):
    a_file = tmp_path / "file"
    a_file.write_text("")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (70, 70))
    found = machine.look(Cluster.local(), Settings(peer_memory=False), str(a_file))
    files, disk = sorted(found.problems, reverse=True)
    assert "may open 70 files, and a job of 1 tasks may need 80" in files
    assert f"cannot write checkpoints to {a_file}: Not a directory" in disk
    assert ["TFDIST_PEER_MEMORY=0" in text for text in found.warnings] == [True]


def test_a_taken_port(monkeypatch):
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        found = machine.look(Cluster.local(), Settings(data_port=port), None)
    assert any(f"port {port} (TFDIST_DATA_PORT)" in problem for problem in found.problems)


def test_a_cluster_that_is_none(monkeypatch, capsys):
    monkeypatch.setenv("TF_CONFIG", "{")
    assert tfdist.cli.main.main(["check"]) == 1
    assert "tfdist check: error: TF_CONFIG" in capsys.readouterr().err
