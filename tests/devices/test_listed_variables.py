"""The variables that a graph lists; an Estimator saves these."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfdist
from devices.replicas import make_strategy

v1 = tf.compat.v1


@pytest.fixture(params=["mirrored", "central", "multi_worker"])
def any_strategy(request):
    """A strategy with two replicas; with four if it uses all devices."""
    if request.param == "multi_worker":
        return tfdist.MultiWorkerMirroredStrategy()
    return make_strategy(request.param, 2)


@pytest.mark.parametrize("synchronization", ["AUTO", "ON_READ"])
@pytest.mark.parametrize("make", [tf.Variable, v1.Variable], ids=["v2", "v1"])
def test_variables_are_listed_whole_and_once(any_strategy, make, synchronization):
    assert any_strategy.num_replicas_in_sync > 1
    with tf.Graph().as_default(), any_strategy.scope():
        made = [
            make(
                float(number),
                name=name,
                trainable=False,
                synchronization=tf.VariableSynchronization[synchronization],
                aggregation=tf.VariableAggregation.SUM,
            )
            for number, name in enumerate(("first", "second"))
        ]
        listed = v1.global_variables()
        assert len(listed) == 2
        assert all(one is other for one, other in zip(listed, made, strict=True))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for number, variable in enumerate(made):
                parts = any_strategy.experimental_local_results(variable)
                assert session.run([part.read_value() for part in parts]) == [number] * len(parts)


def test_ordinary_variables_stay_listed():
    strategy = make_strategy("central", 1)
    with tf.Graph().as_default(), strategy.scope():
        variable = tf.Variable(1.0)
        (listed,) = v1.global_variables()
        assert listed is variable
