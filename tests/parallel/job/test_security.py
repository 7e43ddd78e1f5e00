"""The promises of docs/operate/security.md, tested with raw sockets and calls against live jobs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import struct
import subprocess
import time
from pathlib import Path

import grpc
import pytest

from support.example_runs import ROOT
from support.launching import PACKAGE
from support.processes.ranks import start_ranks
from support.ps_job import roles
from support.raw_data_peer import HEADER_BYTES, MAGIC, find_door, hello, introduce, receive
from support.training.known_gradient import ended_well, go_on, reach, train, weight_after
from support.warm_python import interpreter
from tfdist.config.cluster import Cluster
from tfdist.control import encoding
from tfdist.ps.config import PsConfig, fingerprint
from tfdist.ps.epochs.messages import EPOCH
from tfdist.ps.messages import (
    ATTACH,
    CHECKPOINT,
    SNAPSHOT,
    AttachRequest,
    CheckpointRequest,
    SnapshotRequest,
)
from tfdist.ps.stats.messages import STATS, StatsRequest

FRAME_HEADER = "<IBBHIIQQQQ"
SHARED, OPEN, SET, OK = 5, 32, 37, 64
# 127.0.0.1 as the kernel prints it, and as an IPv6 socket has it.
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}

TRAINS = """
import os, sys, time
from pathlib import Path
Path(__file__).with_name(f"task-{os.getpid()}").touch()
import keras, numpy as np, tfdist
strategy = tfdist.ParameterServerStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
while not Path(sys.argv[1]).exists():
    model.fit(np.ones((8, 2)), np.ones((8, 1)), batch_size=2, verbose=0)
print("trained")
"""


def environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [PACKAGE, os.environ.get("PYTHONPATH")]))
    return dict(os.environ, PYTHONPATH=path, TF_CPP_MIN_LOG_LEVEL="3")


@pytest.mark.long(covered_by="test_a_job_of_tfdist_run_refuses_strangers")
def test_the_commands_of_the_page(tmp_path):
    secret, _ = blocks()
    assert run_block(secret, tmp_path) == MET
    assert (tmp_path / "job.secret").stat().st_mode & 0o777 == 0o600


def test_the_certificates_of_the_page(tmp_path):
    _, certificates = blocks()
    assert len(certificates.splitlines()) <= 12
    assert run_block(certificates, tmp_path) == MET
    for key in ("ca.key", "localhost.key"):
        assert (tmp_path / key).stat().st_mode & 0o777 == 0o600


MET = ["[worker 0] rank 0 met", "[worker 1] rank 1 met"]


def blocks() -> list[str]:
    """The page's commands: with a secret, and with certificates."""
    page = (ROOT / "docs/operate/security.md").read_text()
    return re.findall(r"```sh\n(.*?)```", page, re.DOTALL)


def run_block(block: str, folder: Path) -> list[str]:
    """Runs commands of the page; returns their output, sorted."""
    command = f'tfdist() {{ "{interpreter()}" -m tfdist "$@"; }}\n{block}'
    finished = subprocess.run(
        ["bash", "-euc", command],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return sorted(finished.stdout.splitlines())


def listening_addresses(pids: set[int]) -> set[str]:
    """The hexadecimal addresses on which processes listen for TCP."""
    inodes = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed since
                found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(descriptor))
                inodes |= {found[1]} if found else set()
    lines = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return {
        fields[1].partition(":")[0] for fields in lines if fields[3] == "0A" and fields[9] in inodes
    }


@pytest.mark.timeout(150)
def test_a_job_of_tfdist_run_refuses_strangers(tmp_path):
    (tmp_path / "train.py").write_text(TRAINS)
    job_file, enough = tmp_path / "job.json", tmp_path / "enough"
    tasks = ["--workers", "2", "--ps", "1", "--job-file", str(job_file)]
    command = ["-m", "tfdist", "run", *tasks, str(tmp_path / "train.py"), str(enough)]
    with subprocess.Popen(
        [interpreter(), *command], env=environment(), stdout=subprocess.PIPE, text=True
    ) as launcher:
        try:
            wait_for_stats(job_file)
            while len(list(tmp_path.glob("task-*"))) < 3:
                time.sleep(0.1)
            assert job_file.stat().st_mode & 0o777 == 0o600
            pids = {int(file.name.partition("-")[2]) for file in tmp_path.glob("task-*")}
            assert set() < listening_addresses(pids) <= LOOPBACK
            cluster = Cluster.from_tf_config(json.loads(job_file.read_text())["cluster"])
            request = AttachRequest(0, 2, fingerprint(cluster), "x", PsConfig.make(2).text(), 1.0)
            for method, body in (
                (ATTACH, encoding.encode(request)),
                (STATS, encoding.encode(StatsRequest(1.0))),
                (
                    CHECKPOINT,
                    encoding.encode(CheckpointRequest(fingerprint(cluster), "x", 1, 1.0)),
                ),
                (SNAPSHOT, encoding.encode(SnapshotRequest(fingerprint(cluster), 0, 1.0))),
                (EPOCH, b"{}"),
            ):
                with grpc.insecure_channel(cluster.ps[0]) as channel:
                    with pytest.raises(grpc.RpcError) as caught:
                        channel.unary_unary(method.path)(body, timeout=10)
                assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
                assert "127.0.0.1" not in caught.value.details()
        finally:
            enough.touch()
            printed, _ = launcher.communicate(timeout=60)
    assert launcher.returncode == 0 and printed.count("trained") == 2
    assert not job_file.exists()


def wait_for_stats(job_file: Path) -> None:
    """Until a later command has reached the job's server, and that a worker."""
    deadline = time.monotonic() + 90
    while True:
        asked = subprocess.run(
            [interpreter(), "-m", "tfdist", "ps", "stats", "--job", str(job_file)],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        if asked.returncode == 0 and "pushes/s" in asked.stdout:
            return
        assert time.monotonic() < deadline, asked.stdout + asked.stderr
        time.sleep(0.5)


def message(kind: int, meta: bytes, payload_bytes: int = 0, exposed: int = 0) -> bytes:
    header = struct.pack(
        FRAME_HEADER, MAGIC, kind, 0, 0, len(meta), exposed, payload_bytes, 7, 0, 0
    )
    return header + meta


def ask(connection: socket.socket, content: bytes) -> bytes:
    """Sends a message; returns the answer's meta, or raises EOFError."""
    connection.sendall(content)
    header = struct.unpack(FRAME_HEADER, receive(connection, HEADER_BYTES))
    kind, size, payload = header[1], header[4], header[6]
    meta = receive(connection, size)
    receive(connection, payload)
    assert kind == OK, (kind, meta)
    return meta


@pytest.mark.timeout(120)
def test_no_address_is_taken_from_a_network():
    """An authenticated peer is disconnected, and nothing of its memory is read or disclosed."""
    with start_ranks(train, 3, kwargs={"pauses": [(4,)] * 2}, roles=roles(2)) as ranks:
        reach(ranks, 4, 0, 1)
        door = find_door(ranks)
        mine = bytearray(65536)
        attacks = (
            # How two processes of one machine offer their memory, and how they name it.
            message(SHARED, struct.pack("<BBQQQ", 1, 1, id(mine), 1, 2)),
            message(SET, struct.pack("<IIQQ", 1, 0, id(mine), len(mine)), len(mine), 1),
        )
        for attack in attacks:
            with socket.create_connection(("127.0.0.1", door.port), timeout=20) as connection:
                introduce(connection, door.key, hello(door.incarnation, 1))
                receive(connection, HEADER_BYTES)  # WELCOME
                ask(connection, message(OPEN, struct.pack("<QQ", 12345, 0)))
                with pytest.raises((EOFError, ConnectionResetError)):
                    ask(connection, attack)
        go_on(ranks, 0, 1)
        outcomes = ranks.join(timeout=60)
    ended_well(outcomes, 2)
    assert outcomes[0].result["weight"] == weight_after(4, 4)
