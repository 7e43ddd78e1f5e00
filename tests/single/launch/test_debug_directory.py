"""The directory of the flight recorder that `tfdist run` gives to its tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.launching import Launcher
from tfdist.observe import dumps

RECORDS = """
from tfdist.config.cluster import Cluster
from tfdist.job import process
cluster = Cluster.from_environment()
process.current.record(cluster)
where = Path(os.environ["TFDIST_DEBUG_DIR"])
say(f"{me} {where} {sorted(path.suffix for path in where.glob(me.replace(' ', '-') + '*'))}")
"""
FAILS = (
    RECORDS
    + """
if me == "worker 1": raise ValueError("a bad row")
wait_for_ever()
"""
)


@pytest.fixture
def launch(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("TFDIST_DEBUG_DIR", raising=False)
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()


def test_a_job_that_ends_well_leaves_none(launch, tmp_path):
    code, out, err = launch(RECORDS, "--workers", "2").finish()
    assert code == 0 and not err, err
    folders = {Path(line.split()[4]) for line in out}
    (folder,) = folders
    assert folder.parent == tmp_path and folder.name.startswith("tfdist-debug-")
    assert all("'.sock'" in line for line in out)
    assert not folder.exists()


def test_a_failed_job_names_its_dumps(launch, tmp_path):
    code, _, err = launch(FAILS, "--workers", "2").finish()
    assert code == 1
    (folder,) = tmp_path.glob("tfdist-debug-*")
    assert f"tfdist run: the tasks' last operations: 'tfdist debug explain {folder}'" in err
    assert folder.stat().st_mode & 0o777 == 0o700
    (dump,) = dumps.read_all(folder)
    assert (dump.task, dump.exception) == ("worker 1", "ValueError: a bad row")
    assert {path.name for path in folder.iterdir()} == {"worker-1.json", "worker-1.failure"}


def test_a_chosen_directory_stays(launch, tmp_path, monkeypatch):
    monkeypatch.setenv("TFDIST_DEBUG_DIR", str(tmp_path / "chosen"))
    code, out, _ = launch(RECORDS, "--workers", "1").finish()
    assert code == 0 and str(tmp_path / "chosen") in out[0]
    assert not list(tmp_path.glob("tfdist-debug-*"))
    assert (tmp_path / "chosen").stat().st_mode & 0o777 == 0o700
