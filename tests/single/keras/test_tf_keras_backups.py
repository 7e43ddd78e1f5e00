"""The two backups of tf_keras's `BackupAndRestore`: whole ones, by one rank 0 after the other."""

from __future__ import annotations

import os
import resource

import numpy as np
import pytest
import tensorflow as tf

from support.tiers import rounds
from tfdist.atomic_files import Term
from tfdist.keras.tf_keras_backups import Backups


class Rank0:
    """A process that saves in a term."""

    def __init__(self, folder, generation=None, job="job"):
        self.value = tf.Variable(tf.zeros([1000]))
        self.checkpoint = tf.train.Checkpoint(value=self.value)
        term = None if generation is None else Term(job, generation)
        self.backups = Backups(self.checkpoint, str(folder), lambda: term)

    def save(self, number):
        self.value.assign(tf.fill([1000], float(number)))
        return self.backups.save()

    def restored(self):
        self.value.assign(tf.zeros([1000]))
        self.backups.restore_or_initialize()
        (number,) = set(self.value.numpy())
        return number


def checkpoints(folder):
    return sorted(path.stem for path in folder.iterdir() if path.suffix == ".index")


def test_the_newest_two_are_kept(tmp_path):
    rank_0 = Rank0(tmp_path)
    assert rank_0.restored() == 0
    for number in (1, 2, 3):
        assert rank_0.save(number) == str(tmp_path / f"ckpt-{number}")
    assert checkpoints(tmp_path) == ["ckpt-2", "ckpt-3"]
    assert len(list(tmp_path.iterdir())) == 5
    assert rank_0.backups.latest_checkpoint == tf.train.latest_checkpoint(tmp_path)
    manager = tf.train.CheckpointManager(rank_0.checkpoint, tmp_path, max_to_keep=1)
    rank_0.value.assign(tf.zeros([1000]))
    assert manager.restore_or_initialize() == str(tmp_path / "ckpt-3")
    assert rank_0.value[0] == 3
    assert manager.save() == str(tmp_path / "ckpt-4")
    assert Rank0(tmp_path).restored() == 3


@pytest.mark.parametrize("ending", ["data-00000-of-00001", "index"])
@pytest.mark.parametrize("damage", ["flipped", "empty", "gone"])
def test_goes_on_from_the_backup_before_a_damaged_one(tmp_path, ending, damage, caplog):
    if (damage, ending) == ("gone", "index"):
        return  # there is no such backup
    rank_0 = Rank0(tmp_path)
    for number in (1, 2):
        rank_0.save(number)
    path = tmp_path / f"ckpt-2.{ending}"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x40
    path.write_bytes(b"" if damage == "empty" else content)
    if damage == "gone":
        path.unlink()
    successor = Rank0(tmp_path)
    assert successor.restored() == 1
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith(f"{tmp_path}/ckpt-2 is damaged: ")
    assert warning.endswith(f"fit continues from {tmp_path}/ckpt-1, the backup before it")
    caplog.clear()
    # The damaged one does not count.
    assert successor.save(3) == str(tmp_path / "ckpt-3")
    assert checkpoints(tmp_path) == ["ckpt-1", "ckpt-3"]


def test_all_are_damaged(tmp_path):
    rank_0 = Rank0(tmp_path)
    for number in (1, 2):
        rank_0.save(number)
        (tmp_path / f"ckpt-{number}.index").write_bytes(b"garbage" * 20)
    with pytest.raises(ValueError, match="is damaged") as caught:
        Rank0(tmp_path).restored()
    for number in (1, 2):
        assert f"{tmp_path}/ckpt-{number} is damaged: " in str(caught.value)


def test_any_altered_byte_of_a_value_is_noticed(tmp_path):
    rank_0 = Rank0(tmp_path)
    for number in (1, 2):
        rank_0.save(number)
    path = tmp_path / "ckpt-2.data-00000-of-00001"
    whole = path.read_bytes()
    drawn = np.random.default_rng(1)
    for at in drawn.choice(len(whole), rounds(20, long=500), replace=False):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert Rank0(tmp_path).restored() == 1


def test_a_full_disk_leaves_nothing(tmp_path):
    rank_0 = Rank0(tmp_path, 3)
    rank_0.save(1)
    before = sorted(os.listdir(tmp_path))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(tf.errors.OpError, match=str(tmp_path)):
            rank_0.save(2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(os.listdir(tmp_path)) == before
    assert rank_0.restored() == 1


@pytest.mark.parametrize("stops", ["before", "while writing", "written"])
def test_a_stopped_rank_0_leaves_the_backups_of_its_successor(tmp_path, stops):
    """Its successor saves once meanwhile, or three times."""
    for saves in (1, 3):
        folder = tmp_path / str(saves)
        stopped, successor = Rank0(folder, 6), Rank0(folder, 7)
        stopped.save(1)
        write = stopped.checkpoint.write

        def meanwhile(path, write=write, successor=successor, saves=saves):
            if stops == "written":
                write(path)
            for number in range(saves):
                successor.save(10 + number)
            if stops == "while writing":
                write(path)

        stopped.checkpoint.write = meanwhile
        if stops == "before":
            meanwhile("")
            stopped.checkpoint.write = write
            assert stopped.save(2) is None
        else:
            stopped.save(2)
        assert Rank0(folder).restored() == 9 + saves
        assert tf.train.latest_checkpoint(folder) == successor.backups.latest_checkpoint
        assert stopped.backups.is_superseded()
        assert not successor.backups.is_superseded()
        successor.save(20)
        assert len(list(folder.iterdir())) == 5
        assert Rank0(folder, 1, "another job").restored() == 20


def test_what_killed_processes_have_left_is_removed(tmp_path):
    rank_0 = Rank0(tmp_path, 7)
    rank_0.save(1)
    job = next(iter(checkpoints(tmp_path))).split("-")[1].partition(".")[0]
    left = {
        "a former generation": f"ckpt-{job}.6.00000000-1.data-00000-of-00001",
        "the same one": f"ckpt-{job}.7.00000000-1_temp",
        "another job": "ckpt-00000000.9.00000000-1.data-00000-of-00001",
        "another job, long ago": "ckpt-11111111.9.00000000-1.data-00000-of-00001",
    }
    for name in left.values():
        (tmp_path / name).touch()
    os.utime(tmp_path / left["another job, long ago"], (1, 1))
    rank_0.save(2)
    found = {path.name for path in tmp_path.iterdir()}
    assert found & set(left.values()) == {left["the same one"], left["another job"]}
