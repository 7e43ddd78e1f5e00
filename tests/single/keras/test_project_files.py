"""The files of KerasTuner's projects: kept by all workers, on the disk of rank 0 alone."""

from __future__ import annotations

import shutil

import pytest

from tfdist.keras.project_files import ProjectFiles, texts_of, write_whole


def a_project(tmp_path):
    files = ProjectFiles(shutil.rmtree)
    files.open(str(tmp_path / "p"), {"tuner0.json": "{}", "trial_0/trial.json": "[0]"})
    return files, tmp_path / "p"


def test_what_was_found_is_kept(tmp_path):
    files, project = a_project(tmp_path)
    assert files.read(str(project / "trial_0" / "trial.json")) == "[0]"
    assert files.matching(f"{project}/trial_*/trial.json") == [str(project / "trial_0/trial.json")]
    assert not files.exists(str(project / "trial_1" / "trial.json"))
    assert not files.has(str(tmp_path / "p2" / "tuner0.json"))
    assert not project.exists()


def test_a_file_that_is_not_there_is_named(tmp_path):
    files, project = a_project(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"oracle\.json"):
        files.read(str(project / "oracle.json"))


def test_rank_0_writes_what_its_predecessor_may_not_have_written(tmp_path):
    files, project = a_project(tmp_path)
    files.write(str(project / "oracle.json"), "1", leads=False)
    files.settle()  # rank 0 has come to the same place
    files.write(str(project / "trial_1" / "trial.json"), "2", leads=False)
    assert not project.exists()
    files.write(str(project / "tuner0.json"), "3", leads=True)
    assert texts_of(str(project)) == {"trial_1/trial.json": "2", "tuner0.json": "3"}


def test_rank_0_deletes_what_its_predecessor_may_not_have_deleted(tmp_path):
    files, project = a_project(tmp_path)
    write_whole(str(project / "trial_0" / "checkpoint.weights.h5"), _touch)
    files.delete(str(project), leads=False, is_member=True)
    assert not files.exists(str(project / "tuner0.json"))
    files.write(str(project / "oracle.json"), "1", leads=True)
    assert [path.name for path in project.iterdir()] == ["oracle.json"]


def test_a_worker_that_came_later_never_deletes(tmp_path):
    files, project = a_project(tmp_path)
    write_whole(str(project / "trial_0" / "checkpoint.weights.h5"), _touch)
    files.delete(str(project), leads=False, is_member=False)
    files.write(str(project / "oracle.json"), "1", leads=True)
    assert (project / "trial_0" / "checkpoint.weights.h5").exists()


def test_a_file_is_never_there_in_part(tmp_path):
    path = tmp_path / "p" / "best.weights.h5"
    write_whole(str(path), _touch)

    def fail(new):
        _touch(new, "part")
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        write_whole(str(path), fail)
    (tmp_path / "p" / ".incomplete-0123-best.weights.h5").touch()  # of a process that was killed
    (tmp_path / "p" / ".incomplete-0123-last.weights.h5").touch()
    assert path.read_text() == "whole"
    write_whole(str(path), _touch)
    assert sorted(each.name for each in path.parent.iterdir()) == [
        ".incomplete-0123-last.weights.h5",
        "best.weights.h5",
    ]


def _touch(path, text="whole"):
    with open(path, "w") as file:
        file.write(text)
