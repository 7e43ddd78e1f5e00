"""`tfdist env`: its output for each way in which a cluster is described."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

import tfdist.cli.main
from support.authority import Authority
from tfdist.config.cluster import Cluster

_READ = ("SLURM_", "OMPI_", "PMI_", "PMIX_", "MPI_", "JOB", "RANK", "WORLD_SIZE", "MASTER_")
_RANK = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "4000"}


@pytest.fixture
def env(monkeypatch, capsys):
    """Runs the command in an environment."""
    for name in list(os.environ):
        if name.startswith((*_READ, "TF_CONFIG", "TFDIST_", "LOCAL_", "TORCHELASTIC")):
            monkeypatch.delenv(name)

    def run(environ, *arguments):
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        code = tfdist.cli.main.main(["env", *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run


PLAIN = "connections: not encrypted\n"


def test_a_task(env):
    code, out, _ = env({**_RANK, "LOCAL_WORLD_SIZE": "2"})
    assert code == 0
    assert out.splitlines()[:4] == [
        "found: torchrun",
        "  torchrun: RANK=1, WORLD_SIZE=2",
        "  LOCAL_WORLD_SIZE=2; ports: from 4001 on, by MASTER_PORT=4000",
        "task: worker 1 (rank 1 of 2) at 127.0.0.1:4002",
    ]
    (assignment,) = shlex.split(out.splitlines()[4])
    cluster = Cluster.from_tf_config(assignment.removeprefix("TF_CONFIG="))
    assert cluster == Cluster.from_environment({**_RANK, "LOCAL_WORLD_SIZE": "2"})


def test_a_parameter_server(env):
    _, out, _ = env({**_RANK, "LOCAL_WORLD_SIZE": "2", "TFDIST_PS": "1"})
    assert "task: ps 0 at 127.0.0.1:4002\n" in out


def test_several_hosts(env):
    code, out, _ = env({**_RANK, "TFDIST_INTERFACE": "lo"})
    assert code == 0
    assert "task: process 1 of 2, 0 of them parameter servers\n" in out
    assert "TF_CONFIG: known at the start" in out and "rank 0 at h:4003" in out
    assert "interface: TFDIST_INTERFACE=lo (127.0.0.1)\n" in out
    fields = json.loads(env({}, "--json")[1])
    assert fields["tf_config"] is None and fields["task"] is None
    assert fields["meeting"] == {"index": 1, "size": 2, "servers": 0, "address": "h:4003"}


def test_alone(env):
    assert env({}) == (0, "found: nothing\ntask: trains alone\nTF_CONFIG='{}'\n" + PLAIN, "")
    _, out, _ = env({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2"})
    assert "  warning: SLURM_JOB_ID=7 ignored: SLURM_PROCID is not set" in out


def test_json(env):
    cluster = Cluster(chief=("a:1",), workers=("b:2",), task_index=0)
    fields = json.loads(env({"TF_CONFIG": cluster.tf_config(), **_RANK}, "--json")[1])
    assert fields == {
        "source": "TF_CONFIG",
        "notes": [
            "TF_CONFIG is set",
            "torchrun: RANK=1, WORLD_SIZE=2: ignored, since TF_CONFIG is set",
        ],
        "warnings": [],
        "task": "worker 0",
        "rank": 1,
        "world_size": 2,
        "address": "b:2",
        "tf_config": cluster.tf_config(),
        "meeting": None,
        "interface": None,
        "encryption": None,
    }


def test_encryption(env, tmp_path):
    secret = {"TFDIST_TLS": "secret", "TFDIST_SECRET": "a8f5f167f44f4964e6c998dee827110c"}
    _, out, _ = env(secret)
    assert out.endswith("\nconnections: TLS, with certificates made from the secret\n")
    tls = Authority(tmp_path).issue()
    _, out, _ = env({"TFDIST_TLS": "", **tls.variables}, "--json")
    assert json.loads(out)["encryption"] == f"TLS, with the certificate {tls.certificate}"


@pytest.mark.parametrize("days", [-1, 1])
def test_files_that_cannot_encrypt(env, tmp_path, days):
    tls = Authority(tmp_path).issue(days=days)
    if days > 0:
        Path(tls.key).unlink()
    code, out, err = env(tls.variables)
    assert (code, out) == (1, "")
    assert err.startswith("tfdist env: error: TFDIST_TLS_")
    assert ("has expired on" if days < 0 else "received '" + tls.key) in err


def test_errors(env):
    code, out, err = env({**_RANK, "RANK": "2"})
    assert (code, out) == (1, "")
    assert err.startswith("tfdist env: error: torchrun: expected RANK in 0..1")
    code, _, err = env({**_RANK, "TFDIST_INTERFACE": "none-such"})
    assert code == 1 and "it has " in err and "lo (127.0.0.1)" in err
