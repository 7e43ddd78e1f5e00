"""A loaded model that follows a training: its variables, and rows in its own process."""

from __future__ import annotations

import dataclasses
import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.patience import wait_until
from support.served_tables import Training, values_of, write_model
from tfdist.errors import CheckpointError
from tfdist.ps.checkpoint import layout, snapshot

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def training(tmp_path):
    training = Training(tmp_path / "snapshots")
    training.set({i: float(i) for i in range(10)})
    publish(training, 1.0)
    return training


def publish(training, value, **changed):
    """Writes a snapshot with variables of this value, of which the kernel is split over servers."""
    number = training.save()
    parts = [np.full(4, value, np.float32), np.full(2, value + 1, np.float32)]
    of_servers = [
        {"dense/kernel/rows_0_of_2": parts[0], "dense/bias": np.full(2, value, np.float32)},
        {"dense/kernel/rows_1_of_2": parts[1]},
    ]
    for server, shards in enumerate(of_servers):
        folder = layout.directory(training.root, server, 2)
        read = snapshot.read(layout.path(folder, number, "npz"))
        given = {name: changed.get(name, array) for name, array in shards.items()}
        snapshot.write(folder, dataclasses.replace(read, shards=given))
    return number


@pytest.fixture
def model(training, tmp_path):
    """A model with a kernel of 3 x 2, a variable of its own, and a bias of 2."""
    shapes = {"dense/kernel": [3, 2], None: [], "dense/bias": [2]}
    folder = write_model(tmp_path / "model", variables=shapes)
    model = tfdist.serving.load(folder, tables=training.root)
    yield model
    model.table_connection.close()


def numbers(model):
    """The values of the model's variables."""
    return [variable.numpy().reshape(-1).tolist() for variable in model.variables]


def test_variables_and_rows_are_taken_up(training, model):
    follower = tfdist.serving.TableFollower(model, training.root, every=0.02)
    assert numbers(model) == [[1, 1, 1, 1, 2, 2], [0], [1, 1]]
    assert values_of(model, [3, 4]) == [3, 4]
    training.set({3: 30.0})
    number = publish(training, 7.0)
    wait_until(lambda: follower.number == number, "the second snapshot")
    assert numbers(model) == [[7, 7, 7, 7, 8, 8], [0], [7, 7]]
    assert values_of(model, [3, 4]) == [30, 4]
    follower.close()


def test_a_snapshot_that_does_not_fit_changes_nothing(training, model):
    follower = tfdist.serving.TableFollower(model, training.root, every=0)
    training.set({3: 30.0})
    publish(training, 7.0, **{"dense/bias": np.zeros(3, np.float32)})
    with pytest.raises(CheckpointError, match=r"'dense/bias' of shape \(2,\).*received 3 numbers"):
        follower.update()
    assert numbers(model) == [[1, 1, 1, 1, 2, 2], [0], [1, 1]]
    assert values_of(model, [3]) == [3]
    publish(training, 8.0)
    assert follower.update()
    assert numbers(model)[2] == [8, 8]
    assert values_of(model, [3]) == [30]
    assert not follower.update()


def test_damaged_rows_change_nothing(training, tmp_path):
    model = tfdist.serving.load(write_model(tmp_path / "other"), tables=training.root)
    follower = tfdist.serving.TableFollower(model, training.root, every=0)
    training.set({i: 30.0 for i in range(10)})
    training.save_damaged()
    with pytest.raises(CheckpointError, match="is damaged: expected checksum"):
        follower.update()
    assert values_of(model, list(range(10))) == list(range(10))
    model.table_connection.close()


def test_a_snapshot_without_a_variable(training, tmp_path):
    folder = write_model(tmp_path / "other", variables={"other/kernel": [2]})
    model = tfdist.serving.load(folder, tables=training.root)
    with pytest.raises(CheckpointError, match="variable 'other/kernel'.*received none"):
        tfdist.serving.TableFollower(model, training.root)
    model.table_connection.close()


def test_another_model(training):
    with pytest.raises(ValueError, match=r"expected a model of tfdist\.serving\.load"):
        tfdist.serving.TableFollower(tf.Module(), training.root)


def test_a_model_that_is_not_used_any_more_is_freed(training, tmp_path):
    folder = write_model(tmp_path / "other", variables={"dense/bias": [2]})
    model = tfdist.serving.load(folder, tables=training.root)
    client = model.table_connection.client
    follower = tfdist.serving.TableFollower(model, training.root, every=0.02)
    freed = weakref.ref(model)
    del model
    gc.collect()
    assert freed() is None
    assert not follower.update()
    with pytest.raises(tf.errors.FailedPreconditionError, match="was closed"):
        client.flush(1.0)
