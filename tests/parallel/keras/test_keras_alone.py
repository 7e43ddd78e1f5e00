"""The same script with one worker: it trains as Keras does without a strategy."""

from __future__ import annotations

import os

import keras
import pytest

import tfdist
from support.processes.ranks import on_ranks
from support.training import models
from support.training.models import classifier, train_like_one_process


@pytest.mark.long("*-tf_config", covered_by="the other cases")
@pytest.mark.parametrize("described", [True, False], ids=["tf_config", "no_tf_config"])
@on_ranks(1)
def test_one_worker(ctx, tmp_path, described):
    if not described:
        del os.environ["TF_CONFIG"]
    model = train_like_one_process(
        ctx,
        lambda: classifier(
            keras.optimizers.SGD(0.1, momentum=0.9), middle=[keras.layers.BatchNormalization()]
        ),
        lambda model: model.fit(
            models.dataset(200, 64),
            epochs=2,
            validation_data=models.dataset(101, 16),
            callbacks=[keras.callbacks.ModelCheckpoint(str(tmp_path / "model.keras"))],
            verbose=0,
        ),
    )
    strategy = model.distribute_strategy
    assert isinstance(strategy, tfdist.MultiWorkerMirroredStrategy)
    assert strategy.is_chief and strategy.communicator is None
    predicted = model.predict(models.dataset(101, 16), verbose=0)
    loaded = keras.models.load_model(tmp_path / "model.keras")
    expected = loaded.predict(models.examples(101)[0], verbose=0)
    assert models.difference([predicted], [expected]) <= 1e-6
