"""Checkpoint files of Keras with a training's state: a damaged one is an error that names it."""

import contextlib
import random
import re
import zipfile

import h5py
import numpy as np
import pytest

from support.tiers import rounds
from tfdist.atomic_files import Term
from tfdist.data.position import InputPosition
from tfdist.keras import state_file
from tfdist.keras.own_state import OwnState
from tfdist.keras.training_state import TrainingState


@pytest.fixture
def backup(tmp_path):
    path = tmp_path / "backup.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", "{}")
    state_file._add(str(path), TrainingState(InputPosition(1, 2), OwnState({})))
    return path


WEIGHTS = np.arange(5000.0)


@pytest.fixture
def weights(tmp_path):
    """A backup in HDF5, of `WEIGHTS`."""
    path = tmp_path / "backup.weights.h5"
    with h5py.File(path, "w") as file:
        file["layers/dense/0"] = WEIGHTS
    state_file._add(str(path), TrainingState(InputPosition(1, 2), OwnState({})), Term("job", 3))
    return path


def test_whole_weights(weights):
    assert state_file.unpacked(state_file.read_state(weights)).position == InputPosition(1, 2)
    assert state_file._read_term(str(weights)) == Term("job", 3)
    with h5py.File(weights) as file:
        np.testing.assert_array_equal(file["layers/dense/0"], WEIGHTS)


def test_any_altered_byte_of_weights_is_noticed(weights):
    """Anywhere in the file: in its structure, in a weight, in the state or in the checksum."""
    whole = weights.read_bytes()
    drawn = random.Random(2)
    places = {0, 7, 8, len(whole) - 1, whole.index(WEIGHTS[1000:1003].tobytes())}
    places |= {drawn.randrange(len(whole)) for _ in range(rounds(200, long=20_000))}
    places |= {drawn.randrange(2000) for _ in range(rounds(100, long=2000))}
    for at in sorted(places):
        weights.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        with pytest.raises(ValueError, match="backup.weights.h5 is damaged: "):
            state_file.read_state(weights)


@pytest.mark.parametrize("left", [0, 4, 1000, -8, -1])
def test_truncated_weights(weights, left):
    weights.write_bytes(weights.read_bytes()[:left])
    with pytest.raises(ValueError, match="backup.weights.h5 is damaged: "):
        state_file.read_state(weights)


def test_weights_of_another_program_are_read_whole(tmp_path):
    """They have no checksum."""
    path = tmp_path / "other.weights.h5"
    with h5py.File(path, "w") as file:
        file["0"] = WEIGHTS
    assert state_file.read_state(path) is None
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="other.weights.h5 is damaged: .*truncated"):
        state_file.read_state(path)


def test_terms(backup, weights, tmp_path):
    for term in (Term("a", 2**40), None):
        path = tmp_path / "another.keras"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("config.json", "{}")
        state_file._add(str(path), TrainingState(InputPosition(), OwnState({})), term)
        assert state_file._read_term(str(path)) == term
    for path in (backup, tmp_path / "none", tmp_path):
        assert state_file._read_term(str(path)) is None


def test_nothing_is_added_to_a_file_that_was_removed(tmp_path):
    with contextlib.suppress(FileNotFoundError):
        state_file._add(str(tmp_path / "gone.h5"), TrainingState(InputPosition(), OwnState({})))
    assert not list(tmp_path.iterdir())


def test_a_whole_file(backup):
    assert state_file.unpacked(state_file.read_state(backup)).position == InputPosition(1, 2)


@pytest.mark.parametrize(
    ("content", "received"),
    [(b"", "an empty file"), (b"no archive", "bytes that begin with b'no archi'")],
)
def test_a_file_that_is_no_archive(tmp_path, content, received):
    (tmp_path / "other.keras").write_bytes(content)
    expected = (
        f"other.keras is damaged: expected an HDF5 file or a .keras archive, received {received}"
    )
    with pytest.raises(ValueError, match=re.escape(expected)):
        state_file.read_state(tmp_path / "other.keras")


def test_an_archive_of_keras(tmp_path):
    with zipfile.ZipFile(tmp_path / "other.keras", "w") as archive:
        archive.writestr("config.json", "{}")
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
