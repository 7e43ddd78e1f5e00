"""Synchronized batch normalization: two workers equal one process with the doubled batch."""

from __future__ import annotations

import pytest

from support.processes.ranks import on_ranks
from support.training import models
from support.training.models import ADAPTIVE, identical

ROWS, STEPS = 64, 10


def train(ctx, library, normalization):
    """Statistics of the whole batch, their moving means and all gradients equal one process's.

    In the second epoch the first one's statistics are used too, because `fit` evaluates.
    """
    data = models.dataset(ROWS * STEPS, ROWS)
    model = models.train_like_one_process(
        ctx,
        lambda: models.built_classifier(
            library.optimizers.SGD(0.05, momentum=0.9), library=library, middle=[normalization()]
        ),
        lambda model: model.fit(data, validation_data=data, epochs=2, verbose=0),
        ADAPTIVE,
        library=library,
    )
    return model.get_weights()


@on_ranks(2, check=identical)
def test_keras_3(ctx):
    import keras

    return train(
        ctx, keras, lambda: keras.layers.BatchNormalization(momentum=0.8, synchronized=True)
    )


@pytest.mark.long("2-ranks-BatchNormalization", covered_by="the other cases")
@pytest.mark.parametrize("name", ["BatchNormalization", "SyncBatchNormalization"])
@on_ranks(2, check=identical, env={"TF_USE_LEGACY_KERAS": "1"})
def test_tf_keras(ctx, name):
    import tf_keras

    def normalization():
        if name == "BatchNormalization":
            return tf_keras.layers.BatchNormalization(momentum=0.8, synchronized=True)
        return tf_keras.layers.experimental.SyncBatchNormalization(momentum=0.8)

    return train(ctx, tf_keras, normalization)
