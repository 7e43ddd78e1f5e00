"""Checkpoint files of Keras with a training's state: a damaged one is an error that names it."""

import zipfile

import pytest

from tfdist.data.position import InputPosition
from tfdist.keras import state_file
from tfdist.keras.own_state import OwnState
from tfdist.keras.training import TrainingState


@pytest.fixture
def backup(tmp_path):
    path = tmp_path / "backup.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", "{}")
    state_file._add(str(path), TrainingState(InputPosition(1, 2), OwnState({})))
    return path


def test_a_whole_file(backup):
    assert state_file.unpacked(state_file.read_state(backup)).position == InputPosition(1, 2)


def test_a_file_that_is_no_archive(tmp_path):
    for content in (b"", b"no archive", b"x" * 100):
        (tmp_path / "other.keras").write_bytes(content)
        assert state_file.read_state(tmp_path / "other.keras") is None


@pytest.mark.parametrize("content", [b"", b"PK", b"\x93NUMPY", b"text"])
def test_a_state_that_is_none(content):
    with pytest.raises(ValueError, match="the state of a training is damaged"):
        state_file.unpacked(content)


def test_any_byte_altered(backup):
    """Each altered file is read, has no state, or is an error that says so."""
    whole, refused = backup.read_bytes(), 0
    for at in range(0, len(whole), 3):
        backup.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            content = state_file.read_state(backup)
            if content is not None:
                state_file.unpacked(content)
        except ValueError as error:
            refused += 1
            assert str(backup) in str(error) or "is damaged" in str(error)
    assert refused > len(whole) // 10
    backup.write_bytes(state_file._HDF5 + whole)
    with pytest.raises(ValueError, match="backup.keras is damaged"):
        state_file.read_state(backup)
