"""Keras 2 (the package tf_keras) on two workers equals one process with the doubled batch."""

from __future__ import annotations

import pytest

from support.processes.ranks import on_ranks
from support.training import models
from support.training.models import ADAPTIVE, EXACT, classifier, identical
from support.training.more_models import train_embedding_like_one_process

STEPS = 20


# Adam, which has slots.
@pytest.mark.long("*-sgd", "*-momentum", covered_by="the other cases")
@pytest.mark.parametrize(
    ("name", "options", "tolerance"),
    [
        ("SGD", {"learning_rate": 0.1}, EXACT),
        ("SGD", {"learning_rate": 0.05, "momentum": 0.9}, EXACT),
        ("Adam", {}, ADAPTIVE),
    ],
    ids=["sgd", "momentum", "adam"],
)
@on_ranks(2, check=identical, env={"TF_USE_LEGACY_KERAS": "1"})
def test_fit_evaluate_predict(ctx, name, options, tolerance):
    import tensorflow as tf
    import tf_keras

    assert tf.keras.Model is tf_keras.Model
    model = models.train_like_one_process(
        ctx,
        lambda: classifier(getattr(tf_keras.optimizers, name)(**options), library=tf_keras),
        lambda model: model.fit(models.dataset(64 * STEPS, 64), verbose=0),
        tolerance,
        library=tf_keras,
    )
    evaluated = model.evaluate(models.dataset(200, 64), verbose=0)
    predicted = model.predict(models.dataset(101, 16), verbose=0)
    assert predicted.shape == (101, models.CLASSES)
    return [*model.get_weights(), evaluated, predicted]


def _state_of(layer):
    return [layer.moving_mean.numpy(), layer.moving_variance.numpy()]


@on_ranks(2, check=identical, env={"TF_USE_LEGACY_KERAS": "1"})
def test_batch_normalization_and_sparse_gradients(ctx):
    import tensorflow as tf
    import tf_keras

    import tfdist

    with tfdist.MultiWorkerMirroredStrategy().scope():
        tf_keras.utils.set_random_seed(ctx.rank)
        ids = tf_keras.Input((4,), dtype="int32")
        rows = tf_keras.layers.Embedding(10, 5)(ids)
        normalization = tf_keras.layers.BatchNormalization(momentum=0.5)
        means = tf.keras.layers.GlobalAveragePooling1D()(normalization(rows))
        model = tf_keras.Model(ids, tf_keras.layers.Dense(1)(means))
        model.compile("adam", "mse")
    data = tf.random.stateless_uniform((320, 4), (1, 2), 0, 9, tf.int32)
    target = tf.reduce_sum(tf.cast(data, tf.float32), axis=1)
    losses = model.fit(data, target, batch_size=64, epochs=3, shuffle=False, verbose=0).history
    assert losses["loss"][-1] < losses["loss"][0]
    return [*model.get_weights(), *_state_of(normalization)]


@pytest.mark.long("*-sgd", "*-adagrad", covered_by="the other cases")
@pytest.mark.parametrize(
    ("name", "ids_dtype"),
    [("SGD", "int64"), ("Adam", "int32"), ("Adagrad", "int64")],
    ids=["sgd", "adam", "adagrad"],
)
@on_ranks(2, check=identical, env={"TF_USE_LEGACY_KERAS": "1"})
def test_embedding(ctx, name, ids_dtype):
    import tf_keras

    return train_embedding_like_one_process(ctx, name, ADAPTIVE, ids_dtype, tf_keras)
