"""The mark of a preempted job that has saved, and the script of Slurm that looks for it."""

from __future__ import annotations

import os
import subprocess
import textwrap
from pathlib import Path

import pytest

from support.example_runs import ROOT
from tfdist.config.settings import Settings
from tfdist.job import process
from tfdist.preemption.saved import NothingSavedError, mark_saved
from tfdist.preemption.training import StoppableSteps

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def marker(tmp_path, monkeypatch) -> Path:
    """The file, in a process without a job."""
    path = tmp_path / "saved"
    settings = Settings.from_environment({"TFDIST_PREEMPTION_MARKER": str(path)})
    alone = process.Process()
    alone._settings = settings
    monkeypatch.setattr(process, "current", alone)
    return path


def _stop(save) -> None:
    with pytest.raises(SystemExit) as end:
        StoppableSteps(None, None).stop("here", save)
    assert end.value.code == 143


def test_a_process_that_has_saved(marker):
    _stop(lambda: "saved to backup")
    assert marker.exists()


def _fails() -> str:
    raise OSError("the disk is full")


def _has_no_place() -> str:
    raise NothingSavedError("there is no directory")


@pytest.mark.parametrize("save", [_fails, _has_no_place])
def test_nothing_was_saved(marker, save, caplog):
    _stop(save)
    assert not marker.exists()
    assert "nothing was saved: " in caplog.text


def test_a_file_that_cannot_be_written_is_logged(marker, caplog, monkeypatch):
    missing = str(marker.parent / "missing" / "saved")
    settings = Settings.from_environment({"TFDIST_PREEMPTION_MARKER": missing})
    monkeypatch.setattr(process.current, "_settings", settings)
    mark_saved()
    assert "cannot say that this job has saved: " in caplog.text and missing in caplog.text


def _run_batch_script(folder: Path, srun: str, **variables: str) -> tuple[int, str, bool]:
    """Runs slurm.sbatch with stand-ins for Slurm's programs.

    Returns:
      Its exit code, its errors, and whether it has queued the job again.
    """
    programs = {"srun": srun, "scontrol": f'echo "$@" >{folder}/queued'}
    for name, body in programs.items():
        path = folder / name
        path.write_text("#!/bin/bash\n" + textwrap.dedent(body))
        path.chmod(0o755)
    (folder / "saved.17").touch()  # of an earlier start
    finished = subprocess.run(
        ["bash", str(ROOT / "keras_examples/clusters/slurm.sbatch"), "train.py"],
        env={"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "17", **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert not (folder / "saved.17").exists()
    queued = folder / "queued"
    return finished.returncode, finished.stderr, queued.exists() and "17" in queued.read_text()


SAVES = "touch $TFDIST_PREEMPTION_MARKER; exit 143"


@pytest.mark.parametrize(
    ("srun", "variables", "expected"),
    [
        (SAVES, {}, (143, "", True)),
        (SAVES, {"SLURM_RESTART_COUNT": "3", "MAX_REQUEUES": "4"}, (143, "", True)),
        ("exit 143", {}, (143, "", False)),
        ("touch $TFDIST_PREEMPTION_MARKER; exit 1", {}, (1, "", False)),
        ("exit 0", {}, (0, "", False)),
    ],
)
def test_slurm_queues_a_job_again_only_if_it_has_saved(tmp_path, srun, variables, expected):
    assert _run_batch_script(tmp_path, srun, **variables) == expected


def test_slurm_queues_a_job_again_so_often_and_no_more(tmp_path):
    variables = {"SLURM_RESTART_COUNT": "4", "MAX_REQUEUES": "4"}
    code, errors, is_queued = _run_batch_script(tmp_path, SAVES, **variables)
    assert (code, is_queued) == (143, False)
    assert errors == "queued again 4 times: not once more (MAX_REQUEUES=4)\n"
