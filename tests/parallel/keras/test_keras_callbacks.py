"""Keras's callbacks on several workers."""

from __future__ import annotations

import os

import keras
import pytest
from keras.callbacks import (
    BackupAndRestore,
    EarlyStopping,
    LambdaCallback,
    LearningRateScheduler,
    ModelCheckpoint,
    ReduceLROnPlateau,
)

import tfdist
from support.processes.ranks import on_ranks
from support.training import models
from support.training.models import (
    built_classifier,
    classifier,
    difference,
    identical,
    train_like_one_process,
)

BATCH, STEPS = 64, 4


def _data():
    return models.dataset(BATCH * STEPS, BATCH)


def _built_classifier(strategy, *middle):
    with strategy.scope():
        model = built_classifier(keras.optimizers.SGD(0.1, momentum=0.9), middle=middle)
    return model


@on_ranks(2, check=identical)
def test_early_stopping_and_plateau_at_the_same_epoch(ctx):
    epochs, rate = 12, 0.25

    def fit(model):
        # Ever smaller steps improve the loss ever less, until at some epoch it is not enough.
        stop = EarlyStopping("val_loss", patience=1, min_delta=0.01, restore_best_weights=True)
        slower = ReduceLROnPlateau("loss", factor=0.75, patience=1, min_delta=10.0)
        return model.fit(
            _data(),
            epochs=epochs,
            validation_data=models.dataset(100, 20),
            callbacks=[slower, stop],
            verbose=0,
        )

    model = train_like_one_process(ctx, lambda: classifier(keras.optimizers.SGD(rate)), fit)
    epochs_run = model.optimizer.iterations.numpy() // STEPS
    assert 3 < epochs_run < epochs
    # No epoch is better by 10 than the first, so each one after it lowers the rate.
    lowered = rate * 0.75 ** (epochs_run - 1)
    assert model.optimizer.learning_rate.numpy() == pytest.approx(lowered)
    return [*model.get_weights(), *models.slots(model)]


@pytest.mark.long(covered_by="test_early_stopping_and_plateau_at_the_same_epoch")
@on_ranks(2, check=identical)
def test_learning_rate_scheduler(ctx):
    model = train_like_one_process(
        ctx,
        lambda: classifier(keras.optimizers.SGD(1.0)),
        lambda model: model.fit(
            _data(),
            epochs=3,
            callbacks=[LearningRateScheduler(lambda epoch, rate: 0.25 / (epoch + 1))],
            verbose=0,
        ),
    )
    assert model.optimizer.learning_rate.numpy() == pytest.approx(0.25 / 3)
    return model.get_weights()


@on_ranks(2, check=identical)
def test_model_checkpoint_keeps_the_chiefs_file_only(ctx, tmp_path):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    model = _built_classifier(strategy, keras.layers.BatchNormalization())
    whole, weights = tmp_path / "model-{epoch}.keras", tmp_path / "best.weights.h5"
    callbacks = [
        ModelCheckpoint(str(whole)),
        ModelCheckpoint(str(weights), save_weights_only=True, save_best_only=True, monitor="loss"),
    ]
    model.fit(_data(), epochs=2, callbacks=callbacks, verbose=0)
    trained = model.get_weights()
    ctx.barrier("saved")
    assert sorted(os.listdir(tmp_path)) == ["best.weights.h5", "model-1.keras", "model-2.keras"]
    # A single process reads them.
    loaded = keras.models.load_model(str(whole).format(epoch=2))
    assert difference(loaded.get_weights(), trained) == 0
    best = built_classifier("sgd", middle=[keras.layers.BatchNormalization()])
    best.load_weights(weights)
    assert difference(best.get_weights(), trained) == 0
    # Then a strategy's model takes them up again.
    again = _built_classifier(strategy, keras.layers.BatchNormalization())
    again.load_weights(weights)
    assert difference(again.get_weights(), trained) == 0
    return [*trained, *again.get_weights()]


class _Stopped(Exception):
    """Ends a training before its time."""


@pytest.mark.long("2-ranks-own_directories", covered_by="the other cases")
@pytest.mark.parametrize("shared", [True, False], ids=["shared_directory", "own_directories"])
@on_ranks(2, check=identical)
def test_backup_and_restore(ctx, tmp_path, shared):
    directory = tmp_path / ("backup" if shared else f"backup-{ctx.rank}")
    epochs_run = []

    def stop_after(epoch, logs):
        epochs_run.append(epoch)
        if len(epochs_run) == 2:
            raise _Stopped

    def fit(model, *callbacks):
        model.fit(_data(), epochs=4, callbacks=list(callbacks), verbose=0)

    strategy = tfdist.MultiWorkerMirroredStrategy()
    uninterrupted = _built_classifier(strategy, keras.layers.BatchNormalization())
    start = uninterrupted.get_weights()
    fit(uninterrupted)
    interrupted = _built_classifier(strategy, keras.layers.BatchNormalization())
    interrupted.set_weights(start)
    with pytest.raises(_Stopped):
        fit(
            interrupted,
            BackupAndRestore(str(directory)),
            LambdaCallback(on_epoch_end=stop_after),
        )
    ctx.barrier("interrupted")
    assert (directory / "latest.weights.h5").exists() == (shared or ctx.rank == 0)
    resumed = _built_classifier(strategy, keras.layers.BatchNormalization())
    fit(
        resumed,
        BackupAndRestore(str(directory)),
        LambdaCallback(on_epoch_end=lambda epoch, logs: epochs_run.append(epoch)),
    )
    assert epochs_run == [0, 1, 2, 3]
    for before, after in zip(
        uninterrupted.trainable_weights, resumed.trainable_weights, strict=True
    ):
        assert difference([before.numpy()], [after.numpy()]) == 0
    assert difference(models.slots(resumed), models.slots(uninterrupted)) == 0
    # The backup holds the mean of the workers' moving statistics, which rounds once more.
    assert difference(resumed.get_weights(), uninterrupted.get_weights()) < 1e-6
    ctx.barrier("resumed")
    assert not (directory / "latest.weights.h5").exists()
    return resumed.get_weights()
