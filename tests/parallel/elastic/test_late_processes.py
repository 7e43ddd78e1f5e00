"""Processes of an elastic job that come after its end do not train, unless it has failed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from support.launching import PACKAGE
from tfdist.launch.ports import free_ports

pytestmark = pytest.mark.timeout(180)

SCRIPT = """
import os, sys
from pathlib import Path
import tensorflow as tf
import tfdist

tfdist.init()
state = tfdist.elastic.TensorFlowState([tf.Variable(0.0)], step=0)

@tfdist.elastic.run
def train(state):
    while state.step < 3:
        state.step += 1
        state.commit()

train(state)
Path(sys.argv[1], f"trained {os.getpid()}").touch()
END
"""


class Job:
    """A job of which one process runs at a time, with its folder."""

    def __init__(self, folder):
        self.folder = folder
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]

    def start(self, end="", index=0, job="night"):
        """Starts a process whose script ends with a line."""
        script = self.folder / f"train {job} {index}.py"
        script.write_text(SCRIPT.replace("END", end))
        config = {
            "cluster": {"worker": self.addresses},
            "task": {"type": "worker", "index": index},
        }
        environment = {
            **os.environ,
            **{"PYTHONPATH": PACKAGE, "TF_CONFIG": json.dumps(config)},
            **{"TFDIST_ELASTIC": "1:2:1", "TFDIST_JOB_ID": job},
            **{"TFDIST_TOMBSTONE_DIR": str(self.folder / "ended")},
        }
        return subprocess.Popen(
            [sys.executable, str(script), str(self.folder)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, end="", index=0, job="night"):
        """Runs a process; returns its exit code, what it has said, and whether it has trained."""
        with self.start(end, index, job) as started:
            try:
                _, err = started.communicate(timeout=60)
            finally:
                started.kill()
        trained = self.folder / f"trained {started.pid}"
        return started.returncode, err, trained.exists()

    @property
    def ended(self):
        return sorted(path.name for path in self.folder.glob("ended/*"))


@pytest.mark.long(
    covered_by="test_a_job_that_has_failed_begins_again, parallel/elastic/test_newcomers_wait.py"
)
def test_a_late_process_does_not_train_and_another_job_does(tmp_path):
    job = Job(tmp_path)
    code, err, trained = job.run()
    assert (code, trained, job.ended) == (0, True, ["night.ended"]), err
    for index in (0, 1):
        code, err, trained = job.run(index=index)
        assert (code, trained) == (0, False), err
        assert f"worker {index}: the job night has ended at 2" in err
        assert "Traceback" not in err
    code, err, trained = job.run("sys.exit(0)", job="the-next")
    assert (code, trained, job.ended) == (0, True, ["night.ended", "the-next.ended"]), err


@pytest.mark.long("1 / 0-1", "sys.exit*", covered_by="the other cases")
@pytest.mark.parametrize(
    ("end", "code"), [("raise SystemExit(4)", 4), ("sys.exit(3)", 3), ("1 / 0", 1)]
)
def test_a_job_that_has_failed_begins_again(end, code, tmp_path):
    job = Job(tmp_path)
    assert job.run(end)[::2] == (code, True)
    assert job.ended == []
