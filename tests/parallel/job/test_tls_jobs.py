"""Whole jobs with encrypted connections, and jobs in which one task does not encrypt."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from support.launching import PACKAGE
from support.warm_python import interpreter

BEGIN = """
import json, os, sys
task = json.loads(os.environ["TF_CONFIG"])["task"]
if sys.argv[1:] == [f"{task['type']} {task['index']}"]:
    del os.environ["TFDIST_TLS"]
import keras, numpy as np, tfdist
"""
MEETS = BEGIN + 'tfdist.init(); print("rank", tfdist.rank(), tfdist.ops.barrier() or "met")'
TRAINS = f"""{BEGIN}
strategy = tfdist.{{strategy}}()
with strategy.scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(np.ones((8, 2)), np.ones((8, 1)), batch_size=2, verbose=0)
print("trained", model.get_weights()[0].ravel())
"""


def run(folder: Path, script: str, *options: str, plain: str = "") -> tuple[int, list[str], str]:
    """Runs a job with --tls; returns its exit code, its tasks' lines, and its errors."""
    (folder / "script.py").write_text(script)
    environment = dict(os.environ, PYTHONPATH=PACKAGE, TF_CPP_MIN_LOG_LEVEL="3")
    arguments = [plain] if plain else []
    done = subprocess.run(
        [interpreter(), "-m", "tfdist", "run", "--tls", *options, "script.py", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    return done.returncode, sorted(done.stdout.splitlines()), done.stderr


def test_a_job_meets(tmp_path):
    code, out, err = run(tmp_path, MEETS, "--workers", "2")
    assert (code, out) == (0, ["[worker 0] rank 0 met", "[worker 1] rank 1 met"]), err[-3000:]


@pytest.mark.long(covered_by="test_a_job_meets")
@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("ParameterServerStrategy", ("--workers", "2", "--ps", "2")),
        ("MultiWorkerMirroredStrategy", ("--workers", "2:3:2")),
    ],
    ids=["servers", "elastic"],
)
def test_a_job_trains(tmp_path, strategy, options):
    timeline = tmp_path / "timeline.json"
    script = TRAINS.replace("{strategy}", strategy)
    code, out, err = run(tmp_path, script, *options, "--timeline", str(timeline))
    assert code == 0 and len(out) == 2, err[-3000:]
    assert len({line.partition("] ")[2] for line in out}) == 1
    # Its clocks were compared by control calls.
    assert timeline.stat().st_size


@pytest.mark.parametrize(
    ("plain", "sentence"),
    [
        ("worker 1", "the other task encrypts its connections (TFDIST_TLS), this one does not"),
        pytest.param(
            "worker 0",
            "this task encrypts its connections (TFDIST_TLS), the other one does not",
            marks=pytest.mark.long(covered_by="test_a_task_that_does_not_encrypt"),
        ),
    ],
)
def test_a_task_that_does_not_encrypt(tmp_path, plain, sentence):
    code, out, err = run(tmp_path, MEETS, "--workers", "2", "--timeout", "60", plain=plain)
    assert code == 1 and not any("met" in line for line in out)
    (reason,) = re.findall(r"^tfdist run: worker 1 failed first: (.*)$", err, re.MULTILINE)
    assert reason.startswith("AuthenticationError: worker 1 at ") and sentence in reason
