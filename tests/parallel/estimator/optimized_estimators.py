"""Estimators whose optimizers the parameter servers may run; the oracle trains without servers."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from unittest import mock

import numpy as np
import tensorflow as tf

import tfdist
from tfdist.config.cluster import Cluster

v1 = tf.compat.v1
STEPS = 50
BATCH = 16
IDS, WIDTH = 7, 3
EXACT, ADAPTIVE = 1e-6, 5e-6
DECAYED = 0.05  # the initial value of a decaying learning rate


def _legacy():
    from tf_keras.optimizers import legacy

    return legacy


def _schedules():
    from tf_keras.optimizers import schedules

    return schedules


# The optimizer's constructor, the tolerance, and whether it takes gradients of rows.
OPTIMIZERS = {
    "v1_sgd": (lambda rate: v1.train.GradientDescentOptimizer(rate), EXACT, True),
    "v1_adagrad": (lambda rate: v1.train.AdagradOptimizer(rate), ADAPTIVE, True),
    "v1_adam": (lambda rate: v1.train.AdamOptimizer(rate), ADAPTIVE, True),
    "v1_momentum": (lambda rate: v1.train.MomentumOptimizer(rate, 0.9), EXACT, False),
    "v1_ftrl": (lambda rate: v1.train.FtrlOptimizer(rate), ADAPTIVE, False),
    "v1_ftrl_options": (
        lambda rate: v1.train.FtrlOptimizer(
            rate,
            learning_rate_power=-0.6,
            l1_regularization_strength=0.001,
            l2_regularization_strength=0.01,
            l2_shrinkage_regularization_strength=0.002,
            beta=0.1,
        ),
        ADAPTIVE,
        False,
    ),
    "v1_ftrl_rows": (lambda rate: v1.train.FtrlOptimizer(rate), ADAPTIVE, True),
    "sgd": (lambda rate: _legacy().SGD(rate), EXACT, True),
    "momentum_rows": (lambda rate: _legacy().SGD(rate, momentum=0.9), EXACT, True),
    "clipped": (lambda rate: _legacy().SGD(rate, clipvalue=0.01), EXACT, False),
    "adagrad_epsilon": (lambda rate: _legacy().Adagrad(rate, epsilon=1e-3), ADAPTIVE, True),
    "amsgrad": (lambda rate: _legacy().Adam(rate, amsgrad=True), ADAPTIVE, True),
    "momentum": (lambda rate: _legacy().SGD(rate, momentum=0.9), EXACT, False),
    "nesterov": (lambda rate: _legacy().SGD(rate, momentum=0.9, nesterov=True), EXACT, False),
    "adagrad": (lambda rate: _legacy().Adagrad(rate), ADAPTIVE, True),
    "adam": (lambda rate: _legacy().Adam(rate), ADAPTIVE, True),
    "ftrl": (
        lambda rate: _legacy().Ftrl(
            rate,
            l1_regularization_strength=0.001,
            l2_regularization_strength=0.01,
            l2_shrinkage_regularization_strength=0.002,
            beta=0.1,
        ),
        ADAPTIVE,
        False,
    ),
}

# Optimizers that the workers run, with part of the log line that gives the reason.
REFUSED = {
    "v1_momentum": "MomentumOptimizer is not one they know",
    "v1_ftrl_rows": "they would change rows of 'table:0' that have no gradient",
    "momentum_rows": "they would change rows of 'table:0' that have no gradient",
    "adagrad_epsilon": "its epsilon is large",
    "amsgrad": "amsgrad is left to the workers",
}
ON_SERVERS = [name for name in OPTIMIZERS if name not in REFUSED]
ON_SERVERS_IN_SYNC = [name for name in ON_SERVERS if name != "clipped"]


def _examples():
    random = np.random.default_rng(0)
    x = random.normal(size=(STEPS * BATCH, 4)).astype("float32")
    ids = random.integers(IDS - 1, size=len(x))  # the last has no gradient ever
    return {"x": x, "id": ids}, (x.sum(axis=1) + ids > 3).astype("int32")


def _input_fn(input_context=None):
    parts = input_context.num_input_pipelines if input_context else 1
    part = input_context.input_pipeline_id if input_context else 0
    data = tf.data.Dataset.from_tensor_slices(_examples())
    return data.shard(parts, part).repeat().batch(BATCH // parts)


def _constant(name, *shape):
    values = np.random.default_rng(len(name)).normal(size=shape).astype("float32")
    return v1.get_variable(name, initializer=values)


def _logits(features, of_rows):
    table = _constant("table", IDS, WIDTH)
    if of_rows:
        rows = tf.gather(table, features["id"])
    else:
        rows = tf.one_hot(features["id"], IDS) @ table
    hidden = tf.nn.tanh(tf.concat([features["x"], rows], 1) @ _constant("hidden", 4 + WIDTH, 8))
    return hidden @ _constant("output", 8, 2) + _constant("bias", 2)


def _train_op(optimizer, loss):
    step = v1.train.get_global_step()
    if isinstance(optimizer, v1.train.Optimizer):
        return optimizer.minimize(loss, global_step=step)
    optimizer.iterations = step
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    return optimizer.get_updates(loss / replicas, v1.trainable_variables())[0]


def _model_fn(features, labels, mode, params):
    from tfdist import estimator

    make, _, of_rows = OPTIMIZERS[params["optimizer"]]
    logits = _logits(features, of_rows)
    loss = tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    )
    rate = DECAYED
    if params["optimizer"].startswith("v1"):
        rate = v1.train.exponential_decay(DECAYED, v1.train.get_global_step(), 10, 0.9)
    elif params["optimizer"] != "sgd":
        rate = _schedules().ExponentialDecay(DECAYED, 10, 0.9)
    return estimator.EstimatorSpec(mode, loss=loss, train_op=_train_op(make(rate), loss))


def own(optimizer):
    """Returns a function that makes an Estimator from its RunConfig."""
    from tfdist import estimator

    return lambda config: estimator.Estimator(
        _model_fn, config=config, params={"optimizer": optimizer}
    )


def canned(optimizers):
    """As `own`, with an optimizer each for the linear and the deep part."""
    from tfdist import estimator

    x = tf.feature_column.numeric_column("x", [4])
    ids = tf.feature_column.categorical_column_with_identity("id", IDS)
    linear, deep = (OPTIMIZERS[name][0] for name in optimizers)
    return lambda config: estimator.DNNLinearCombinedClassifier(
        linear_feature_columns=[ids],
        linear_optimizer=lambda: linear(DECAYED),
        dnn_feature_columns=[x, tf.feature_column.embedding_column(ids, WIDTH)],
        dnn_hidden_units=[8],
        dnn_optimizer=lambda: deep(DECAYED),
        config=config,
    )


@contextlib.contextmanager
def logged():
    """Collects the lines that tfdist logs within."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("tfdist")
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def train(make, model_dir, steps, strategy=None):
    """Trains the Estimator of `make` until step `steps`, and returns it."""
    from tfdist import estimator

    config = estimator.RunConfig(
        model_dir=str(model_dir), tf_random_seed=1, train_distribute=strategy
    )
    trained = make(config)
    trained.train(_input_fn, max_steps=steps)
    return trained


def _train_alone(make, model_dir, steps):
    with mock.patch.dict(os.environ):
        del os.environ["TF_CONFIG"]
        return train(make, model_dir, steps)


def _assert_equal(trained, expected, tolerance):
    assert trained.get_variable_names() == expected.get_variable_names()
    for name in expected.get_variable_names():
        value, wanted = trained.get_variable_value(name), expected.get_variable_value(name)
        assert np.abs(value - wanted).max() <= tolerance, name


def train_like_alone(ctx, make, tolerance, **options):
    """Trains with and without servers; asserts that the last checkpoints are equal.

    Both continue from the same checkpoint of one step, including its slots.

    Args:
      ctx: of the rank.
      make: makes the Estimator out of its RunConfig.
      tolerance: the largest difference allowed.
      **options: of the strategy.
    """
    is_chief = Cluster.from_environment().is_chief
    alone, shared = ctx.tmp_path / "alone", ctx.tmp_path / "shared"
    if is_chief:
        _train_alone(make, alone, 1)
        shutil.copytree(alone, shared)
        expected = _train_alone(make, alone, STEPS)
    trained = train(make, shared, STEPS, tfdist.ParameterServerStrategy(**options))
    if is_chief:
        _assert_equal(trained, expected, tolerance)
