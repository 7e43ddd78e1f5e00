"""Steps that parameter servers make for several workers of an Estimator, against closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from parallel.estimator.optimized_estimators import train
from support.ps_job import on_job, served

v1 = tf.compat.v1
pytestmark = pytest.mark.timeout(120)
SLOPE = 0.5


def _slope_model_fn(features, labels, mode, params):
    """Its gradient is the same in all steps of all workers, whatever they have pulled."""
    from tfdist import estimator

    value = v1.get_variable("value", initializer=np.zeros(3, "float32"))
    table = v1.get_variable("table", initializer=np.zeros((4, 2), "float32"))
    loss = SLOPE * (tf.reduce_sum(value) + tf.reduce_sum(tf.gather(table, [1, 3])))
    optimizer = params["optimizer"]()
    train_op = optimizer.minimize(loss, global_step=v1.train.get_global_step())
    return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def _slope_estimator(optimizer):
    from tfdist import estimator

    return lambda config: estimator.Estimator(
        _slope_model_fn, config=config, params={"optimizer": optimizer}
    )


@pytest.mark.long(covered_by="test_adam_of_several_workers")
@on_job(3, 2, timeout=90)
def test_no_step_of_several_workers_is_lost(ctx):
    """Each worker's step starts from the others' steps, and so do the slots."""
    if served():
        return
    strategy = tfdist.ParameterServerStrategy(ps_optimizer="server")
    adagrad = _slope_estimator(lambda: v1.train.AdagradOptimizer(0.1))
    # Two graphs: the second continues with the servers' values.
    train(adagrad, ctx.tmp_path / "adagrad", 100, strategy)
    trained = train(adagrad, ctx.tmp_path / "adagrad", 300, strategy)
    if not strategy.is_chief:
        return
    steps = trained.get_variable_value("global_step")
    assert 300 <= steps <= 304
    accumulated = 0.1 + SLOPE**2 * np.arange(1, steps + 1)
    moved = -0.1 * np.sum(SLOPE / np.sqrt(accumulated))
    expected = {"value": moved, "value/Adagrad": accumulated[-1]}
    for name, number in expected.items():
        np.testing.assert_allclose(trained.get_variable_value(name), number, rtol=1e-4)
    rows = trained.get_variable_value("table")
    np.testing.assert_allclose(rows, np.outer([0, 1, 0, 1], [moved] * 2), rtol=1e-4)
    slots = trained.get_variable_value("table/Adagrad")
    np.testing.assert_allclose(slots[[0, 2]], 0.1)
    np.testing.assert_allclose(slots[[1, 3]], accumulated[-1], rtol=1e-4)


@on_job(3, timeout=90)
def test_adam_of_several_workers(ctx):
    if served():
        return
    strategy = tfdist.ParameterServerStrategy(ps_optimizer="server")
    adam = _slope_estimator(lambda: v1.train.AdamOptimizer(0.01, beta1=0.5, beta2=0.5))
    trained = train(adam, ctx.tmp_path, 100, strategy)
    if strategy.is_chief:
        # Steps all of the learning rate, since the gradient is always the same.
        steps = trained.get_variable_value("global_step")
        value = trained.get_variable_value("value")
        np.testing.assert_allclose(value, -0.01 * steps, rtol=0.02)
        assert 0 <= trained.get_variable_value("beta1_power") < 0.5
