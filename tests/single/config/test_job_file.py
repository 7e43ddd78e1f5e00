"""The job file: private, and removed even if its launcher was killed."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys

import pytest

from support.launching import PACKAGE
from tfdist.config import job_file
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


def test_another_launcher_leaves_one_alone_that_is_not_yet_locked(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    lock = fcntl.flock

    def lock_late(descriptor, how):
        monkeypatch.setattr(job_file.fcntl, "flock", lock)
        with JobFile("{}").written(tmp_path / "other.json"):
            job_file._remove_stale_files(tmp_path / f"tfdist-{os.getuid()}")
        lock(descriptor, how)

    monkeypatch.setattr(job_file.fcntl, "flock", lock_late)
    with JobFile("{}").written() as path:
        assert JobFile.read(path) == JobFile("{}")
    assert not os.listdir(path.parent)


def test_one_that_others_can_write_is_refused(tmp_path):
    with JobFile("{}").written(tmp_path / "job.json") as path:
        for mode in (0o620, 0o602, 0o666):
            path.chmod(mode)
            with pytest.raises(ClusterConfigError, match=rf"can write \(mode {mode:03o}\)"):
                JobFile.read(path)


def test_one_that_others_can_read_is_said(tmp_path, caplog):
    with JobFile("{}").written(tmp_path / "job.json") as path:
        path.chmod(0o644)
        assert JobFile.read(path) == JobFile("{}")
    (record,) = caplog.records
    assert record.getMessage() == (
        f"other users can read {path}, and with it the job's secret (mode 644); expected mode 600"
    )


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
