"""Training without a strategy in a job of one, and what is refused."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.training import models
from tfdist.callbacks import (
    BroadcastGlobalVariablesCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
)
from tfdist.config.cluster import Cluster
from tfdist.errors import NotInitializedError
from tfdist.job import process


@pytest.fixture(autouse=True)
def _no_job():
    yield
    process.current.leave()


@pytest.fixture
def _alone():
    tfdist.init(Cluster.local())


def _gradient(x):
    tape = tfdist.DistributedGradientTape(tf.GradientTape())
    with tape:
        loss = x**2
    return tape.gradient(loss, x)


@pytest.mark.usefixtures("_alone")
def test_one_rank_trains_as_without_tfdist():
    features, labels = models.examples(64)
    trained = []
    for wrap in (lambda optimizer: optimizer, tfdist.DistributedOptimizer):
        keras.utils.set_random_seed(0)
        distributed = wrap is tfdist.DistributedOptimizer
        normalization = (
            tfdist.SyncBatchNormalization() if distributed else keras.layers.BatchNormalization()
        )
        model = models.built_classifier(wrap(keras.optimizers.Adam()), middle=[normalization])
        callbacks = [
            BroadcastGlobalVariablesCallback(),
            MetricAverageCallback(),
            LearningRateWarmupCallback(0.001),
        ]
        history = model.fit(
            features, labels, shuffle=False, verbose=0, callbacks=callbacks * distributed
        ).history
        trained.append([*model.get_weights(), *models.slots(model), history["loss"]])
    models.identical(trained)
    assert _gradient(tf.Variable(3.0)).numpy() == 6.0


@pytest.mark.usefixtures("_alone")
def test_passes_of_one_rank():
    variable = tf.Variable(0.0)
    optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
    seen = []
    for gradient in (1.0, 2.0, 4.0, 8.0, 16.0):
        optimizer.apply_gradients([(tf.constant(gradient), variable)])
        seen.append(float(variable))
    assert seen == [0.0, -3.0, -3.0, -15.0, -15.0]
    with pytest.raises(ValueError, match="1 of 1 as in the first; received 0 of 1"):
        optimizer.apply_gradients([(None, variable)])


def test_init_comes_first():
    optimizer = keras.optimizers.SGD()
    with pytest.raises(NotInitializedError, match=r"tfdist.DistributedOptimizer: .*tfdist.init()"):
        tfdist.DistributedOptimizer(optimizer)
    with pytest.raises(NotInitializedError, match="tfdist.DistributedGradientTape: "):
        _gradient(tf.Variable(3.0))
    with pytest.raises(NotInitializedError, match="tfdist.SyncBatchNormalization: "):
        tfdist.SyncBatchNormalization()(np.ones([2, 3]), training=True)
    assert not tfdist.is_initialized()
    tfdist.init(Cluster.local())
    assert tfdist.is_initialized() and tfdist.DistributedOptimizer(optimizer) is optimizer


@pytest.mark.usefixtures("_alone")
def test_what_is_refused():
    wrap = tfdist.DistributedOptimizer
    with pytest.raises(ValueError, match="this DistributedAdam is one already"):
        wrap(wrap(keras.optimizers.Adam()))
    scaled = keras.optimizers.LossScaleOptimizer(wrap(keras.optimizers.Adam()))
    with pytest.raises(ValueError, match="this DistributedAdam is one already"):
        wrap(scaled)
    with pytest.raises(TypeError, match="expected an optimizer of Keras 3 or tf_keras, rec"):
        wrap("adam")
    with pytest.raises(ValueError, match='expected gradient_reduction to be "mean" or "sum"'):
        wrap(keras.optimizers.Adam(), "average")
    for passes in (0, 1.5, True):
        with pytest.raises(ValueError, match="expected backward_passes_per_step to be a whole"):
            wrap(keras.optimizers.Adam(), backward_passes_per_step=passes)
    optimizer = wrap(keras.optimizers.SGD())
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        variable = tf.Variable(3.0)
        with pytest.raises(ValueError, match="in the scope of OneDeviceStrategy"):
            wrap(keras.optimizers.SGD())
        with pytest.raises(ValueError, match="in the scope of OneDeviceStrategy"):
            optimizer.apply([tf.constant(1.0)], [variable])
        with pytest.raises(ValueError, match="tfdist.DistributedGradientTape: expected no"):
            _gradient(variable)
        with pytest.raises(ValueError, match="tfdist.SyncBatchNormalization: expected no"):
            tfdist.SyncBatchNormalization()(np.ones([2, 3]), training=True)
