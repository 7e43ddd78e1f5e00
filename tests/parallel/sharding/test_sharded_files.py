"""Files of sharded training are Keras's own, for any number of workers."""

from __future__ import annotations

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.callbacks import BackupAndRestore

import tfdist
from support.processes.ranks import on_ranks
from support.training import resuming
from support.training.models import (
    ADAPTIVE,
    COLUMNS,
    built_classifier,
    dataset,
    difference,
    identical,
    slots,
)

STEPS, BATCH = 4, 48


def adam():
    return keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9)


def fit(model):
    model.fit(dataset(BATCH * STEPS, BATCH), verbose=0)


def alone(rounds: int) -> keras.Model:
    """Trains without a strategy."""
    keras.utils.clear_session()  # names begin anew
    keras.utils.set_random_seed(0)
    model = built_classifier(adam())
    for _ in range(rounds):
        fit(model)
    return model


def sharded_strategy():
    return tfdist.MultiWorkerMirroredStrategy(sharding=tfdist.Sharding())


def assert_goes_on(model: keras.Model) -> None:
    """Trains a model again, and compares with a training that was not saved between."""
    fit(model)
    expected = alone(rounds=2)
    assert difference(model.get_weights(), expected.get_weights()) <= ADAPTIVE
    assert difference(slots(model), slots(expected)) <= ADAPTIVE


def arrays_of(file: h5py.File) -> list[np.ndarray]:
    """The arrays of a file in the order of their names."""
    found: list[np.ndarray] = []
    file.visititems(lambda _, item: found.append(item[()]) if hasattr(item, "dtype") else None)
    return found


@on_ranks(2)
def test_plain_keras_loads_what_shards_have_saved(ctx, tmp_path):
    paths = [str(tmp_path / f"{ctx.rank}.{ending}") for ending in ("keras", "h5")]
    plain_path = str(tmp_path / "plain.h5")
    strategy = sharded_strategy()
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = built_classifier(adam())
    fit(model)
    for path in paths:
        model.save(path)
    checkpoint = tf.train.Checkpoint(optimizer=model.optimizer).save(str(tmp_path / f"{ctx.rank}"))
    if ctx.rank > 0:
        return
    assert_goes_on(keras.models.load_model(paths[0]))
    alone(rounds=1).save(plain_path)
    with h5py.File(paths[1]) as ours, h5py.File(plain_path) as theirs:
        assert difference(arrays_of(ours), arrays_of(theirs)) <= ADAPTIVE
    plain = built_classifier(adam())
    plain.optimizer.build(plain.trainable_variables)
    tf.train.Checkpoint(optimizer=plain.optimizer).restore(checkpoint).assert_consumed()
    assert difference(slots(plain), slots(alone(rounds=1))) <= ADAPTIVE


@pytest.mark.long(
    covered_by="test_plain_keras_loads_what_shards_have_saved, test_checkpoint_between_shards"
)
@on_ranks(3, check=identical)
def test_shards_load_what_plain_keras_has_saved(ctx, tmp_path):
    path = str(tmp_path / "plain.keras")
    if ctx.rank == 0:
        alone(rounds=1).save(path)
    strategy = sharded_strategy()  # when rank 0 has saved
    with strategy.scope():
        model = keras.models.load_model(path)
    assert model.optimizer.variables[2].value.shape.num_elements() == 48 // 3
    assert_goes_on(model)
    return [*model.get_weights(), *slots(model)]


@on_ranks(2)
def test_checkpoint_between_shards(ctx, tmp_path):
    strategy = sharded_strategy()
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model, other = built_classifier(adam()), built_classifier(adam())
        other.optimizer.build(other.trainable_variables)
    fit(model)
    path = tf.train.Checkpoint(model=model).save(str(tmp_path / f"{ctx.rank}"))
    tf.train.Checkpoint(model=other).restore(path).assert_consumed()
    assert difference(slots(other), slots(model)) == 0
    other.optimizer.variables[2].assign(np.ones([COLUMNS, 8]))
    assert np.all(other.optimizer.variables[2].numpy() == 1)


@on_ranks(2, check=identical)
def test_backup_restores(ctx, tmp_path):
    strategy = sharded_strategy()

    def build():
        with strategy.scope():
            return built_classifier(adam())

    model = resuming.assert_goes_on(
        build,
        resuming.arrays,
        lambda: BackupAndRestore(str(tmp_path / "backup"), save_freq=3),
        at=(1, 3),
        goes_on_at=(1, 3),
        between=lambda: ctx.barrier("interrupted"),
    )
    return model.get_weights()


@on_ranks(2)
def test_a_file_of_another_shape_is_refused(ctx, tmp_path):
    path = str(tmp_path / f"{ctx.rank}.keras")
    keras.utils.set_random_seed(0)
    wider = keras.Sequential([keras.layers.Dense(9), keras.layers.Dense(3)])
    wider.compile(adam(), "mse")
    wider.fit(np.ones([4, COLUMNS]), np.ones([4, 3]), verbose=0)
    wider.save(path)
    strategy = sharded_strategy()
    with strategy.scope():
        model = built_classifier(adam())
    try:
        model.load_weights(path)
    except ValueError as error:
        assert "(6, 8)" in str(error) and "(6, 9)" in str(error)  # noqa: PT017
    else:
        raise AssertionError("a file of another shape was loaded")
