"""`tfdist timeline` and `tfdist run --timeline` with unusable files."""

from __future__ import annotations

import json

import pytest

from support.launching import Launcher
from tfdist.cli.main import main
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.observe.recorder import Recorder
from tfdist.observe.timeline import parts, recording

pytestmark = pytest.mark.timeout(60)
CLUSTER = Cluster(workers=("127.0.0.1:1", "127.0.0.1:2"), task_index=1)


@pytest.fixture
def listening(tmp_path):
    """The directory in which a task that is not recorded listens."""
    recorder = Recorder(CLUSTER, tmp_path / "dumps")
    yield tmp_path / "dumps"
    recorder.close()


def test_start_and_stop(listening, tmp_path, capsys):
    out = tmp_path / "out.json"
    where = ("--dir", str(listening))
    assert main(["timeline", "start", str(out), *where]) == 0
    assert capsys.readouterr().out == f"worker-1: recording {out}\n"
    assert main(["timeline", "stop", *where]) == 0
    assert capsys.readouterr().out == f"worker-1: stopped {out}\n{out}: 1 task, 0 events\n"
    about = json.loads(out.read_text())["otherData"]
    assert about["tasks"][0]["task"] == "worker 1"
    assert main(["timeline", "stop", *where]) == 1
    assert capsys.readouterr().out == "worker-1: failed: worker 1 is not recorded\n"


@pytest.mark.parametrize(
    "path, why",
    [
        ("absent/out.json", "No such file or directory"),
        (".", "is a directory"),
        ("x" * 300, "File name too long"),
        ("y/" * 3000 + "out.json", "expected a path of less than 4096 bytes"),
    ],
    ids=["no directory", "a directory", "a long name", "a long path"],
)
def test_a_path_that_cannot_be_written(listening, tmp_path, capsys, path, why):
    arguments = ["timeline", "start", str(tmp_path / path), "--dir", str(listening)]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("tfdist timeline start: error: ") and why in error


def test_a_job_that_has_ended(tmp_path, capsys):
    job = str(tmp_path / "job.json")
    out = str(tmp_path / "out.json")
    for arguments in (["start", out, "--job", job], ["stop", "--job", job]):
        assert main(["timeline", *arguments]) == 2
        assert f"{job}: no such file; has the job ended?" in capsys.readouterr().err
    assert main(["timeline", "start", out, "--dir", str(tmp_path)]) == 2
    assert "no task of a running job listens here" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert main(["timeline", "merge", out]) == 2
    assert "out.json.parts: expected a directory with parts" in capsys.readouterr().err


def test_a_launcher_that_cannot_write(tmp_path):
    launcher = Launcher(tmp_path)
    try:
        absent = tmp_path / "absent" / "out.json"
        code, _, errors = launcher("say('runs')", "--timeline", str(absent)).finish()
        assert code == 1
        (line,) = errors
        assert line.startswith(f"tfdist run: error: --timeline: cannot write {absent}: ")
        # A script without a task of tfdist writes no part.
        unused = tmp_path / "unused.json"
        code, out, errors = launcher("say('runs')", "--timeline", str(unused)).finish()
        assert code == 0 and out == ["[worker 0] runs"]
        (line,) = [line for line in errors if "timeline" in line]
        assert "expected parts of a timeline: there are none" in line
        assert not unused.exists() and not parts.directory_of(unused).exists()
    finally:
        launcher.close()


def test_a_task_that_cannot_write_trains_all_the_same(tmp_path, caplog):
    settings = Settings(timeline=str(tmp_path / "absent" / "out.json"))
    made = recording.start(CLUSTER, settings)
    assert "worker 1: TFDIST_TIMELINE: cannot write beside" in caplog.text
    made.close()


def test_a_full_disk_ends_the_recording(tmp_path, caplog, monkeypatch):
    settings = Settings(timeline=str(tmp_path / "out.json"))
    made = recording.start(CLUSTER, settings)

    def full(self, fields):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parts.PartWriter, "_line", full)
    with pytest.raises(OSError, match="No space left on device"):
        made.stop()
    assert "its timeline ends here" in caplog.text
