"""Jobs under Slurm, on two nodes that are network namespaces."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from parallel.engines import slurm_cluster
from support.example_runs import ROOT
from support.held_prediction import HeldPrediction
from support.launching import PACKAGE

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(slurm_cluster.missing() is not None, reason=str(slurm_cluster.missing())),
    # They need the engine itself.
    pytest.mark.long(
        covered_by="single/config/test_environments.py, parallel/prediction/test_predict_deaths.py"
    ),
]
EXAMPLES = ROOT / "keras_examples"
CLUSTERS = EXAMPLES / "clusters"
SHORT = ("--epochs", "1", "--steps-per-epoch", "10")
# Worker 0 takes srun's SIGTERM as a notice.
CRASHING = """
import keras, numpy as np, tfdist

strategy = tfdist.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")

class Crash(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if tfdist.rank() == 1 and batch == 20:
            raise RuntimeError("worker 1 crashes")

x = np.ones((6400, 1))
backup = keras.callbacks.BackupAndRestore("backup")
model.fit(x, x, batch_size=2, epochs=9, verbose=0, callbacks=[Crash(), backup])
"""
VARIABLES = {
    "PYTHONPATH": PACKAGE,
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TFDIST_SECRET": "a secret of 24 characters",
    "PATH": f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin",
}


@pytest.fixture(scope="module")
def slurm(tmp_path_factory) -> Iterator[slurm_cluster.SlurmCluster]:
    cluster = slurm_cluster.SlurmCluster(tmp_path_factory.mktemp("slurm"))
    yield cluster
    cluster.close()


def output_of(finished: subprocess.CompletedProcess) -> str:
    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-3000:]
    return finished.stdout


def sum_in(text: str, steps: int) -> float:
    """The sum of weights that train.py prints after its last step."""
    return float(re.search(rf"after {steps} steps the weights' sum is (\S+)", text)[1])


def wait_until(what: str, is_true, timeout: float = 200.0) -> None:
    deadline = time.monotonic() + timeout
    while not is_true():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


@pytest.mark.parametrize("workers", [2, 4])
def test_fashion_mnist(slurm, workers) -> None:
    command = ("srun", "-N2", f"-n{workers}", "--cpu-bind=none", "python")
    text = output_of(slurm(*command, str(EXAMPLES / "fashion_mnist.py"), *SHORT, **VARIABLES))
    assert f"{workers} workers, 10 steps" in text and "test accuracy" in text


def test_a_parameter_server(slurm) -> None:
    script = (str(EXAMPLES / "parameter_server.py"), "--epochs", "1", "--limit", "1280")
    command = ("srun", "-N2", "-n3", "python", *script)
    text = output_of(slurm(*command, TFDIST_PS="1", **VARIABLES))
    assert "2 workers, 1 ps" in text and "test accuracy" in text


def test_a_killed_worker_ends_the_job(slurm, tmp_path) -> None:
    kill = "import os, tfdist\ntfdist.init()\nimport tensorflow as tf\n"
    kill += "tfdist.ops.all_reduce(tf.ones(3))\n"
    kill += "if tfdist.rank() == 1: os.kill(os.getpid(), 9)\n"
    kill += "tfdist.ops.all_reduce(tf.ones(3))\n"
    (tmp_path / "kill.py").write_text(kill)
    command = ("srun", "-N2", "-n2", "--kill-on-bad-exit=1", "python", str(tmp_path / "kill.py"))
    finished = slurm(*command, **VARIABLES)
    assert finished.returncode != 0
    assert re.search(r"task 1: (Killed|Exited)", finished.stderr), finished.stderr


def test_a_preempted_job_is_queued_again(slurm, tmp_path) -> None:
    log = tmp_path / "log"
    training = (str(CLUSTERS / "train.py"), "--output", str(tmp_path / "preempted"))
    options = ("--parsable", f"--output={log}", "-N2", "--ntasks-per-node=1")
    sbatch = ("sbatch", *options, str(CLUSTERS / "slurm.sbatch"), *training)
    job = output_of(slurm(*sbatch, **VARIABLES)).strip()
    try:
        wait_until("the third epoch", lambda: log.exists() and "Epoch 3/" in log.read_text())
        assert slurm("scancel", "--signal=TERM", job).returncode == 0
        wait_until("saved", lambda: "SIGTERM: stopped in epoch" in log.read_text())
        # Slurm starts a job that was queued again after a while of its own.
        wait_until("the end", lambda: "after 2000 steps" in log.read_text(), timeout=400)
    finally:
        slurm("scancel", job)
    text = log.read_text()
    assert text.count("Epoch 1/") == 2, text[-3000:]  # once by each worker

    alone = slurm("python", *training[:2], str(tmp_path / "alone"), **VARIABLES)
    assert sum_in(text, 2000) == pytest.approx(sum_in(output_of(alone), 2000), abs=0.1)


def test_a_crashing_job_is_not_queued_again(slurm, tmp_path) -> None:
    log, script = tmp_path / "log", tmp_path / "crash.py"
    script.write_text(CRASHING)
    options = ("--parsable", f"--output={log}", "-N2", "--ntasks-per-node=1")
    sbatch = ("sbatch", *options, str(CLUSTERS / "slurm.sbatch"), str(script))
    job = output_of(slurm(*sbatch, **VARIABLES)).strip()
    try:
        wait_until(
            "the end", lambda: "JobState=FAILED" in slurm("scontrol", "show", "job", job).stdout
        )
        shown = slurm("scontrol", "show", "job", job).stdout
    finally:
        slurm("scancel", job)
    assert "Restarts=0" in shown and "ExitCode=143" in shown, shown
    assert "worker 1 crashes" in log.read_text()


def test_elastic_in_an_allocation(slurm, tmp_path) -> None:
    log = tmp_path / "log"
    command = ["srun", "-N2", "-n2", "--kill-on-bad-exit=0", f"--output={log}"]
    command += [str(CLUSTERS / "elastic_task.sh"), str(CLUSTERS / "train.py")]
    command += ["--output", str(tmp_path / "elastic")]
    variables = {**slurm.environment, **VARIABLES, "TFDIST_ELASTIC": "1:2:2"}
    step = subprocess.Popen(slurm.within(*command), env=variables)
    try:
        wait_until("the third epoch", lambda: log.exists() and "Epoch 3/" in log.read_text())
        (worker,) = (pid for pid in _processes(str(tmp_path)) if _rank(pid) == 1)
        subprocess.run(["kill", "-9", str(worker)], check=True)
        assert step.wait(300) == 0, log.read_text()[-3000:]
    finally:
        step.kill()
        step.wait()
    text = log.read_text()
    assert "worker 1 failed with exit code 137: starting it again" in text
    assert sum_in(text, 2000)


def test_a_prediction_survives_a_killed_worker(slurm, tmp_path) -> None:
    """Slurm starts no task again, so that the other two make its parts."""
    prediction, log = HeldPrediction(tmp_path), tmp_path / "log"
    command = ["srun", "-N2", "-n3", "--cpu-bind=none", f"--output={log}", "python", "-m", "tfdist"]
    variables = {**slurm.environment, **VARIABLES}
    step = subprocess.Popen(
        slurm.within(*command, *prediction.words()), env=variables, stderr=subprocess.PIPE
    )
    try:
        prediction.wait_until_held(3, lambda: step.poll() is None)
        prediction.kill_one()
        prediction.let_go()
        _, told = step.communicate(timeout=300)
    finally:
        step.kill()
        step.wait()
    # The killed task's, although all parts are there.
    assert step.returncode == 128 + signal.SIGKILL, told
    assert re.search(rb"task \d: Killed", told), told
    assert log.read_text().count("tfdist predict: 360 rows in 12 parts") == 2
    prediction.check()


def _processes(argument: str) -> list[int]:
    """The Python processes with a part of an argument on their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        is_python = Path(words[0].decode()).name.startswith("python")
        if is_python and any(argument.encode() in word for word in words):
            found.append(int(path.parent.name))
    return found


def _rank(pid: int) -> int:
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(int(v.split(b"=")[1]) for v in variables if v.startswith(b"SLURM_PROCID="))
