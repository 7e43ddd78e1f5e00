"""The job file: private, and removed even if its launcher was killed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from launching import PACKAGE

from tfdist.config.job_file import JobFile
from tfdist.errors import ClusterConfigError

KILLED = """
import os, signal
from tfdist.config.job_file import JobFile
with JobFile("{}", "a secret of sixteen").written() as path:
    print(path, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_is_written_is_read_and_removed(tmp_path):
    metrics = {"worker 0": "127.0.0.1:9000"}
    file = JobFile("{}", "a secret of sixteen", metrics=metrics)
    with file.written(tmp_path / "job.json") as path:
        assert path.stat().st_mode & 0o777 == 0o600
        assert JobFile.read(path) == file
    assert not path.exists()


def test_those_of_killed_launchers_are_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", PACKAGE)
    killed = subprocess.run([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, timeout=50)
    left = killed.stdout.decode().strip()
    assert os.path.exists(left) and left.startswith(str(tmp_path))
    with JobFile("{}").written() as path:
        assert os.listdir(path.parent) == [path.name]
        # Another launcher leaves it alone.
        with JobFile("{}").written(tmp_path / "other.json"):
            assert path.exists()


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        "[" * 100_000,
        "{}",
        '{"cluster": 1}',
        '{"cluster": "", "secret": "\u20ac"}',
        '{"cluster": "", "metrics": ["host:1"]}',
        '{"cluster": "", "metrics": {"worker 0": 1}}',
        '{"cluster": "", "metrics": {"worker 0": "host"}}',
    ],
)
def test_what_is_no_job_file(tmp_path, content):
    path = tmp_path / "job.json"
    if content is None:
        os.mkfifo(path)
    else:
        path.write_text(content)
    with pytest.raises(ClusterConfigError, match="expected a job file"):
        JobFile.read(path)
