"""The same script under the variables of several launchers, without `TF_CONFIG`."""

from __future__ import annotations

import contextlib
import os
import random
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import tfdist
from support.warm_python import interpreter
from tfdist.launch.ports import free_ports

PACKAGE = str(Path(tfdist.__file__).parents[1])
SECRET = "a secret of 24 characters"
SCRIPT = """
import tensorflow as tf
import tfdist

tfdist.init()
rank, size = tfdist.rank(), tfdist.size()
total = tfdist.ops.all_reduce(tf.constant([1.0, 10.0]) * (rank + 1))
group = tfdist.new_group(range(size))
of_group = tfdist.ops.all_reduce(tf.constant(100.0 * (rank + 1)), group)
print(f"rank {rank} of {size} has {total.numpy().tolist()} and {of_group.numpy()}", flush=True)
"""
PS_SCRIPT = """
import keras
import numpy as np
import tfdist

strategy = tfdist.ParameterServerStrategy()
with strategy.scope():
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(np.ones((8, 2)), np.ones((8, 1)), batch_size=2, verbose=0)
print(f"rank {tfdist.rank()} of {tfdist.size()} has trained", flush=True)
"""
Environments = Callable[[int, int], dict[str, str]]


def adjacent_ports(count: int) -> int:
    """The first of `count` free ports in a row."""
    for _ in range(100):
        first = random.randrange(10_000, 30_000)
        with contextlib.suppress(OSError):
            return free_ports(count, range(first, first + count))[0]
    raise OSError(f"expected {count} free ports in a row")


def torchrun(rank: int, first: int) -> dict[str, str]:
    """Two hosts: the ranks tell theirs to rank 0."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(first - 1),
    }


def open_mpi(rank: int, first: int) -> dict[str, str]:
    """One host."""
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "MASTER_PORT": str(first - 1),
    }


def slurm(rank: int, first: int) -> dict[str, str]:
    """Three tasks on one node; the last one is a parameter server."""
    return {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        "SLURM_NODEID": "0",
        "SLURM_STEP_NUM_TASKS": "3",
        "SLURM_STEP_NODELIST": "node[04]",
        "SLURM_STEP_TASKS_PER_NODE": "3",
        "SLURM_STEP_RESV_PORTS": f"{first}-{first + 2}",
        "TFDIST_PS": "1",
    }


def run(tmp_path: Path, script: str, environment: Environments, tasks: int) -> list[str]:
    """Runs the tasks and returns their lines, sorted."""
    (tmp_path / "script.py").write_text(script)
    path = os.pathsep.join(filter(None, [PACKAGE, os.environ.get("PYTHONPATH")]))
    common = dict(os.environ, PYTHONPATH=path, TF_CPP_MIN_LOG_LEVEL="3", TFDIST_SECRET=SECRET)
    first = adjacent_ports(tasks + 1)
    with contextlib.ExitStack() as running:
        processes = []
        for rank in range(tasks):
            process = subprocess.Popen(
                [interpreter(), "script.py"],
                cwd=tmp_path,
                env=common | environment(rank, first),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            running.callback(process.wait)
            running.callback(process.kill)
            processes.append(process)
        lines = []
        for process in processes:
            printed, errors = process.communicate(timeout=50)
            assert process.returncode == 0, errors[-3000:]
            lines += re.findall(r"^rank .*$", printed, re.MULTILINE)
    return sorted(lines)


@pytest.mark.long("open_mpi", covered_by="the other cases, single/config/test_environments.py")
@pytest.mark.parametrize("environment", [open_mpi, torchrun])
def test_ranks(tmp_path, environment):
    assert run(tmp_path, SCRIPT, environment, 2) == [
        "rank 0 of 2 has [3.0, 30.0] and 300.0",
        "rank 1 of 2 has [3.0, 30.0] and 300.0",
    ]


@pytest.mark.long(covered_by="test_ranks, single/config/test_environments.py")
def test_a_parameter_server(tmp_path):
    assert run(tmp_path, PS_SCRIPT, slurm, 3) == [
        "rank 0 of 2 has trained",
        "rank 1 of 2 has trained",
    ]
