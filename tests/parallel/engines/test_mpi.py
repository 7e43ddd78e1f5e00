"""Jobs under Open MPI."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.example_runs import ROOT
from support.held_prediction import HeldPrediction
from support.launching import PACKAGE

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        shutil.which("mpirun") is None, reason="Open MPI is missing: apt-get install openmpi-bin"
    ),
    # They need the engine itself.
    pytest.mark.long(
        covered_by="single/config/test_environments.py, parallel/prediction/test_predict_deaths.py"
    ),
]
EXAMPLES = ROOT / "keras_examples"
# Seconds until the ranks get a SIGTERM to mpirun, and from then to SIGKILL:
# docs/operate/launch_mpi.md.
GRACE = ("--mca", "odls_base_sigkill_timeout", "5")
KILL = """
import os
import tensorflow as tf
import tfdist

tfdist.init()
tfdist.ops.all_reduce(tf.ones(3))
if tfdist.rank() == 1:
    os.kill(os.getpid(), 9)
tfdist.ops.all_reduce(tf.ones(3))
"""


@pytest.fixture
def mpirun(tmp_path) -> Iterator:
    """Starts `mpirun -np N python ARGUMENTS`, with its output in the file `log`."""
    running = []

    def start(processes: int, *arguments: str, **variables: str) -> subprocess.Popen:
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", *GRACE]
        command += ["-np", str(processes), sys.executable, *arguments]
        environment = {**os.environ, "PYTHONPATH": PACKAGE, "TF_CPP_MIN_LOG_LEVEL": "3"}
        with open(tmp_path / "log", "a") as log:
            running.append(
                subprocess.Popen(
                    command,
                    env={**environment, "TFDIST_SECRET": "a secret of 24 characters", **variables},
                    stdout=log,
                    stderr=log,
                )
            )
        return running[-1]

    yield start
    for process in running:
        process.terminate()
        process.wait(90)


def finish(mpirun, log: Path, *arguments, **variables) -> str:
    code = mpirun(*arguments, **variables).wait(300)
    text = log.read_text()
    assert code == 0, text[-3000:]
    return text


@pytest.mark.parametrize("workers", [2, 4])
def test_fashion_mnist(mpirun, tmp_path, workers) -> None:
    script = (str(EXAMPLES / "fashion_mnist.py"), "--epochs", "1", "--steps-per-epoch", "10")
    text = finish(mpirun, tmp_path / "log", workers, *script)
    assert f"{workers} workers, 10 steps" in text and "test accuracy" in text


def test_a_parameter_server(mpirun, tmp_path) -> None:
    script = (str(EXAMPLES / "parameter_server.py"), "--epochs", "1", "--limit", "1280")
    text = finish(mpirun, tmp_path / "log", 3, *script, TFDIST_PS="1")
    assert "2 workers, 1 ps" in text and "test accuracy" in text


def test_a_killed_worker_ends_the_job(mpirun, tmp_path) -> None:
    (tmp_path / "kill.py").write_text(KILL)
    assert mpirun(2, str(tmp_path / "kill.py")).wait(200) != 0
    text = (tmp_path / "log").read_text()
    assert re.search(r"(?s)rank 1 .*exited on\s+signal 9", text), text[-3000:]


def test_a_preempted_job_goes_on_when_started_again(mpirun, tmp_path) -> None:
    log = tmp_path / "log"
    # Long enough to be still running when the ranks get the signal.
    script = [str(EXAMPLES / "clusters" / "train.py"), "--epochs", "100"]
    script += ["--output", str(tmp_path / "preempted")]
    job = mpirun(2, *script)
    deadline = time.monotonic() + 200
    while "Epoch 3/" not in log.read_text():
        assert time.monotonic() < deadline and job.poll() is None, log.read_text()[-3000:]
        time.sleep(0.1)
    job.send_signal(signal.SIGTERM)
    assert job.wait(100) != 0
    assert "SIGTERM: stopped in epoch" in log.read_text(), log.read_text()[-3000:]

    text = finish(mpirun, log, 2, *script)
    assert text.count("Epoch 1/") == 2  # once by each worker
    script[-1] = str(tmp_path / "undisturbed")
    again = finish(mpirun, log, 2, *script)
    sums = re.findall(r"after 5000 steps the weights' sum is (\S+)", again)
    assert float(sums[0]) == pytest.approx(float(sums[1]), abs=0.1)


def test_a_killed_prediction_continues_when_started_again(mpirun, tmp_path) -> None:
    prediction = HeldPrediction(tmp_path)
    job = mpirun(3, "-m", "tfdist", *prediction.words())
    prediction.wait_until_held(3, lambda: job.poll() is None)
    prediction.kill_one()
    assert job.wait(100) == 128 + signal.SIGKILL
    assert not (prediction.output / "_SUCCESS").exists()
    prediction.let_go()
    text = finish(mpirun, tmp_path / "log", 3, "-m", "tfdist", *prediction.words())
    assert text.count("tfdist predict: 360 rows in 12 parts") == 3
    prediction.check()
