"""`fit` continues from the backup before a damaged one, or ends with an error that names both."""

from __future__ import annotations

import errno
import os
import resource

import keras
import numpy as np
import pytest
from keras.callbacks import BackupAndRestore, ModelCheckpoint

import tfdist
from tfdist.atomic_files import Term
from tfdist.keras import state_file

pytestmark = pytest.mark.timeout(240)

STEPS, EPOCHS = 4, 3
NEWEST, FORMER = "latest.weights.h5", "latest.weights.h5.bkp"


class Interrupted(Exception):
    """Ends a training before its time."""


def train(*callbacks, interrupt=None):
    """Trains; returns the batches that were trained, and the weights."""
    keras.utils.set_random_seed(1)
    with tfdist.MultiWorkerMirroredStrategy().scope():
        model = keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(200), keras.layers.Dense(1)]
        )
        model.compile(keras.optimizers.Adam(0.01), "mse")
    steps = []

    def note(batch, logs):
        steps.append((model.history.epoch[-1] + 1 if model.history.epoch else -1, batch))
        if len(steps) == interrupt:
            raise Interrupted

    x = np.random.default_rng(0).normal(size=(8 * STEPS, 3))
    noting = keras.callbacks.LambdaCallback(on_train_batch_end=note)
    options = {"batch_size": 8, "epochs": EPOCHS, "verbose": 0}
    try:
        model.fit(x, x[:, :1], callbacks=[*callbacks, noting], **options)
    except Interrupted:
        pass
    return steps, model.get_weights()


@pytest.fixture(scope="module")
def expected():
    return train()[1]


@pytest.fixture
def folder(tmp_path):
    """Has backups of steps 4 and 6 of 12."""
    made = tmp_path / "backup"
    train(backup(made), interrupt=7)
    assert {path.name for path in made.iterdir()} == {NEWEST, FORMER, "training_metadata.json"}
    return made


def backup(folder, **options):
    return BackupAndRestore(str(folder), save_freq=2, **options)


def flip(path):
    """Alters a byte of a weight."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x40
    path.write_bytes(content)


# More of them in test_state_file.py.
DAMAGES = {"flipped": flip, "empty": lambda path: path.write_bytes(b"")}


@pytest.mark.parametrize("damage", DAMAGES)
def test_goes_on_from_the_backup_before_it(folder, damage, expected, caplog):
    DAMAGES[damage](folder / NEWEST)
    steps, weights = train(backup(folder))
    assert len(steps) == STEPS * EPOCHS - 4
    for received, other in zip(weights, expected, strict=True):
        np.testing.assert_array_equal(received, other)
    (warning,) = [r.getMessage() for r in caplog.records if "damaged" in r.getMessage()]
    assert warning.startswith(f"{folder / NEWEST} is damaged: ")
    assert warning.endswith(f"; fit continues from {folder / FORMER}, the backup before it")
    assert not folder.exists()
    caplog.clear()


def test_a_kill_between_two_names_leaves_the_backup_before(folder, expected):
    """As where the file system has no hard links."""
    (folder / NEWEST).replace(folder / FORMER)
    steps, weights = train(backup(folder))
    assert len(steps) == STEPS * EPOCHS - 6
    np.testing.assert_array_equal(weights[0], expected[0])


@pytest.mark.long(covered_by="test_the_only_one_is_damaged")
def test_both_are_damaged(folder):
    flip(folder / NEWEST)
    (folder / FORMER).write_bytes(b"")
    with pytest.raises(ValueError, match="is damaged: ") as caught:
        train(backup(folder))
    for name in (NEWEST, FORMER):
        assert f"{folder / name} is damaged: " in str(caught.value)


def test_the_only_one_is_damaged(folder):
    (folder / FORMER).unlink()
    flip(folder / NEWEST)
    with pytest.raises(ValueError, match="is damaged: .*there is no backup before it") as caught:
        train(backup(folder))
    assert f"{folder / NEWEST} is damaged" in str(caught.value)
    assert f"({folder / FORMER})" in str(caught.value)


@pytest.mark.long(covered_by="test_goes_on_from_the_backup_before_it")
def test_double_checkpoint_and_no_deletion(tmp_path, expected):
    """Both are kept, and neither is copied."""
    folder = tmp_path / "backup"
    train(backup(folder, double_checkpoint=True, delete_checkpoint=False))
    assert {path.name for path in folder.iterdir()} == {NEWEST, FORMER, "training_metadata.json"}
    flip(folder / NEWEST)
    steps, weights = train(backup(folder, double_checkpoint=True))
    assert len(steps) == 2
    np.testing.assert_array_equal(weights[0], expected[0])


@pytest.mark.long("21", covered_by="the other cases")
@pytest.mark.parametrize("size", [0, 1, 21])
def test_a_double_checkpoint_of_few_bytes(tmp_path, size):
    """Fewer than a zip file has at least."""
    folder = tmp_path / "backup"
    train(backup(folder, double_checkpoint=True), interrupt=7)
    (folder / NEWEST).write_bytes((folder / NEWEST).read_bytes()[:size])
    steps, _ = train(backup(folder, double_checkpoint=True))
    assert len(steps) == STEPS * EPOCHS - 4


@pytest.mark.long(
    covered_by="single/test_atomic_files.py::test_a_process_of_a_former_term_never_replaces_the_file_of_a_later_one"
)
def test_a_process_of_a_former_generation_neither_replaces_nor_deletes(tmp_path, monkeypatch):
    folder = tmp_path / "backup"
    monkeypatch.setattr(state_file, "term_of", lambda model: Term("job", 7))
    train(backup(folder), interrupt=7)
    saved = (folder / NEWEST).read_bytes(), (folder / FORMER).read_bytes()
    monkeypatch.setattr(state_file, "term_of", lambda model: Term("job", 6))
    steps, _ = train(backup(folder))
    assert len(steps) == STEPS * EPOCHS - 6
    assert ((folder / NEWEST).read_bytes(), (folder / FORMER).read_bytes()) == saved
    monkeypatch.setattr(state_file, "term_of", lambda model: Term("job", 8))
    train(backup(folder))
    assert not folder.exists()


@pytest.mark.long("best.weights.h5", covered_by="the other cases")
@pytest.mark.parametrize("name", ["best.keras", "best.weights.h5"])
def test_a_damaged_checkpoint_is_no_place_to_go_on_from(tmp_path, name):
    path = tmp_path / name
    train(ModelCheckpoint(str(path), save_weights_only=name.endswith("h5")))
    flip(path)
    with pytest.raises(ValueError, match=f"{path} is damaged: "):
        train(tfdist.callbacks.ResumeFrom(path))


@pytest.mark.long("best.weights.h5", covered_by="the other cases")
@pytest.mark.parametrize("name", ["best.keras", "best.weights.h5"])
def test_a_full_disk_leaves_the_former_file_alone(tmp_path, name, monkeypatch):
    """HDF5 would end the process by a signal, so it does not begin to write."""
    path = tmp_path / name
    saves = ModelCheckpoint(str(path), save_weights_only=name.endswith("h5"), save_freq=2)
    train(saves, interrupt=3)
    before, of_folder = path.read_bytes(), os.statvfs(tmp_path)
    free = len(before) - 1
    # Two fields of `statvfs_result`: the size of a block, and the number of free ones.
    full = os.statvfs_result(
        [1 if i == 1 else free if i == 4 else v for i, v in enumerate(of_folder)]
    )
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    with pytest.raises(OSError, match=f"bytes of free space, found {free:,}") as caught:
        train(saves)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.long(covered_by="test_a_full_disk_leaves_the_former_file_alone")
def test_a_disk_that_becomes_full(tmp_path):
    path = tmp_path / "best.keras"
    saves = ModelCheckpoint(str(path), save_freq=2)
    train(saves, interrupt=3)
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, hard))
    try:
        with pytest.raises(OSError, match="cannot be written: File too large") as caught:
            train(saves)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(path))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
