"""Servers of tables that take up later snapshots while they answer."""

from __future__ import annotations

import shutil

import pytest

import tfdist
from support.patience import wait_until
from support.served_tables import Training, addresses, serving, values_of, write_model
from tfdist.errors import CheckpointError

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def training(tmp_path):
    training = Training(tmp_path / "snapshots")
    training.set({i: float(i) for i in range(100)})
    training.save()
    return training


@pytest.fixture
def model(training, tmp_path):
    """A model whose only server follows the training; `model.server` is that."""
    group = addresses(1)
    with serving(training.root, group, 0, follow=0.02) as server:
        model = tfdist.serving.load(write_model(tmp_path / "model"), group)
        model.server = server
        yield model
        model.table_connection.close()


def follows(model, number):
    wait_until(lambda: model.server.number == number, f"snapshot {number}")


def test_changed_and_removed_rows(training, model):
    training.set({5: 50.0, 1000: 1.0})
    training.remove(7)
    follows(model, training.save())
    assert values_of(model, [5, 6, 1000]) == [50, 6, 1]
    assert -1 <= values_of(model, [7])[0] <= 1


def test_a_folder_that_is_begun_anew_is_told(training, model, tmp_path, caplog):
    """Its numbers are smaller: servers and followers would wait for ever, and say nothing."""
    follows(model, training.save())
    anew = Training(tmp_path / "anew")
    anew.set({5: 50.0})
    anew.save()
    follower = tfdist.serving.TableFollower(model, training.root, every=0)
    shutil.rmtree(training.root)
    (tmp_path / "anew").rename(training.root)
    text = "expected snapshot 2 or a later one, received another snapshot 1"
    wait_until(lambda: text in caplog.text, "the message")
    with pytest.raises(CheckpointError, match=text):
        follower.update()
    assert (model.server.number, follower.number) == (2, 2)
    assert values_of(model, [5]) == [5]


def test_a_whole_snapshot_removes_what_it_lacks(training, model):
    training.remove(*range(50))
    training.set({60: -1.0})
    follows(model, training.save(full=True))
    assert values_of(model, [60, 61]) == [-1, 61]
    assert all(-1 <= value <= 1 for value in values_of(model, list(range(2, 50))))


def test_missed_snapshots_are_caught_up(training, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(training.root, copy)
    group = addresses(1)
    with serving(copy, group, 0, follow=0.02) as server:
        model = tfdist.serving.load(write_model(tmp_path / "model"), group)
        for value in (1.0, 2.0, 3.0):
            training.set({int(value): 10 * value})
            number = training.save()
        shutil.copytree(training.root, copy, dirs_exist_ok=True)
        wait_until(lambda: server.number == number, "the last snapshot")
        assert values_of(model, [1, 2, 3, 4]) == [10, 20, 30, 4]
        model.table_connection.close()


def test_a_damaged_update_is_refused_whole_and_the_next_whole_one_taken(training, model, caplog):
    training.set({i: -1.0 for i in range(100)})
    # Damaged before the manifest names it, as by a disk.
    number = training.save_damaged()
    wait_until(lambda: "refuses a later one" in caplog.text, "the refusal")
    assert model.server.number == number - 1
    assert values_of(model, list(range(100))) == list(range(100))
    training.set({1: 5.0})
    follows(model, training.save(full=True))
    assert values_of(model, [1, 2]) == [5, -1]
