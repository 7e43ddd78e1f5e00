"""`tfdist run` names an elastic job, and gives it a directory for the mark of its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from single.launch.fake_ssh import make_fake_ssh
from support.launching import Launcher

pytestmark = pytest.mark.timeout(60)
BODY = """
where = Path(os.environ.get("TFDIST_TOMBSTONE_DIR", "none"))
say(f'{os.environ.get("TFDIST_JOB_ID")} {where} {where.is_dir()}')
"""


@pytest.fixture
def launch(tmp_path, monkeypatch):
    for name in ("TFDIST_TOMBSTONE_DIR", "TFDIST_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()


def told(launched):
    """Returns what each worker has: the job's name, the directory, and whether it is there."""
    code, out, err = launched.finish()
    assert code == 0, err
    return [tuple(line.partition("] ")[2].split()) for line in out]


def test_each_job_has_its_own(launch):
    jobs = [told(launch(BODY, "--workers", "2:2")) for _ in range(2)]
    for workers in jobs:
        assert len(workers) == 2 and len(set(workers)) == 1
        job, folder, exists = workers[0]
        assert job.startswith("run-") and exists == "True" and not Path(folder).exists()
    assert jobs[0][0][0] != jobs[1][0][0]


def test_what_the_user_names_is_kept(launch, tmp_path, monkeypatch):
    monkeypatch.setenv("TFDIST_JOB_ID", "night")
    monkeypatch.setenv("TFDIST_TOMBSTONE_DIR", str(tmp_path))
    assert told(launch(BODY, "--workers", "1:1")) == [("night", str(tmp_path), "True")]
    assert tmp_path.is_dir()


def test_each_host_has_a_directory(launch, tmp_path):
    hosts = ["--ssh", make_fake_ssh(tmp_path), "--hosts", "127.0.0.2:2,127.0.0.3:1"]
    workers = told(launch(BODY, "--workers", "3:3", *map(str, hosts)))
    assert len({job for job, _, _ in workers}) == 1 and len(workers) == 3
    assert len({folder for _, folder, _ in workers}) == 2
    assert all(exists == "True" and not Path(folder).exists() for _, folder, exists in workers)


def test_another_job_has_none(launch):
    assert told(launch(BODY, "--workers", "1")) == [("None", "none", "False")]
