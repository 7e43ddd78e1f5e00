"""Variables of central storage: assignments of replicas, and variables with components."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from devices.replicas import make_strategy
from tfdist.strategies._variables.central_variable import CentralVariable

Aggregation = tf.VariableAggregation


@pytest.fixture
def central():
    return make_strategy("central", 3)


def _variable(strategy, aggregation, initial=(10.0, 10.0), **options):
    with strategy.scope():
        return tf.Variable(initial, aggregation=aggregation, trainable=False, **options)


def _run(strategy, update, graph):
    def run():
        strategy.run(update)  # no return: a tf.function cannot return an operation

    (tf.function(run) if graph else run)()


def _one():
    """1.0, 2.0 and 3.0 on the three replicas."""
    replica = tf.distribute.get_replica_context()
    return tf.cast(replica.replica_id_in_sync_group + 1, tf.float32)


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize(
    ("aggregation", "value"),
    [
        (Aggregation.SUM, 6.0),
        (Aggregation.MEAN, 2.0),
        (Aggregation.ONLY_FIRST_REPLICA, 1.0),
        (Aggregation.NONE, 1.0),
    ],
)
def test_assignments_are_aggregated_and_done_once(central, aggregation, value, graph):
    variable = _variable(central, aggregation)
    assert type(variable) is CentralVariable
    assert variable.device.endswith("CPU:0")
    full = [2]
    _run(central, lambda: variable.assign_add(tf.fill(full, _one())), graph)
    np.testing.assert_array_equal(variable, [10 + value] * 2)
    _run(central, lambda: variable.assign_sub(tf.fill(full, _one())), graph)
    np.testing.assert_array_equal(variable, [10.0] * 2)
    _run(central, lambda: variable.assign(tf.fill(full, _one()), read_value=False), graph)
    np.testing.assert_array_equal(variable, [value] * 2)
    # Outside the replicas it is an ordinary variable.
    variable.assign_add([1.0, 2.0])
    np.testing.assert_array_equal(variable, [value + 1, value + 2])


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize(
    ("aggregation", "value"), [(Aggregation.SUM, 6.0), (Aggregation.NONE, 1.0)]
)
def test_rows_are_aggregated_and_written_once(central, aggregation, value, graph):
    variable = _variable(central, aggregation, [[10.0], [10.0], [10.0]])

    def rows():
        return tf.IndexedSlices(tf.reshape(_one(), [1, 1]), tf.constant([1]), tf.constant([3, 1]))

    _run(central, lambda: variable.scatter_add(rows()), graph)
    np.testing.assert_array_equal(variable, [[10.0], [10 + value], [10.0]])
    _run(central, lambda: variable.scatter_sub(rows()), graph)
    np.testing.assert_array_equal(variable, [[10.0]] * 3)
    _run(central, lambda: variable.scatter_update(rows()), graph)
    np.testing.assert_array_equal(variable, [[10.0], [value], [10.0]])


@pytest.mark.parametrize("aggregation", [Aggregation.SUM, Aggregation.MEAN])
def test_on_read_variables_have_a_component_per_replica(central, aggregation):
    on_read = tf.VariableSynchronization.ON_READ
    variable = _variable(central, aggregation, 0.0, synchronization=on_read, name="seen")
    assert [v.name for v in variable.values] == ["seen:0", "seen/replica_1:0", "seen/replica_2:0"]
    assert [v.device[-5:] for v in variable.values] == ["CPU:0", "CPU:1", "CPU:2"]
    for _ in range(2):
        central.run(lambda: variable.assign_add(_one()))
    assert [v.numpy() for v in variable.values] == [2.0, 4.0, 6.0]
    total = 12.0 if aggregation == Aggregation.SUM else 4.0
    assert variable.numpy() == total
    assert central.extended.read_var(variable).numpy() == total
    variable.assign(9.0)
    assert variable.numpy() == 9.0


def test_initial_values_of_components_are_equal(central):
    with central.scope():
        variable = tf.Variable(
            lambda: tf.random.uniform([4]),
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=Aggregation.MEAN,
            trainable=False,
        )
    first, *others = (v.numpy() for v in variable.values)
    for other in others:
        np.testing.assert_array_equal(other, first)


def test_random_layers_and_counters_advance_once(central):
    """Seeds and counters have aggregation NONE, which TensorFlow refuses here."""
    with central.scope():
        dropout = keras.layers.Dropout(0.5, seed=1)
        outputs = tf.function(central.run)(lambda: dropout(tf.ones([100]), training=True))
    for value in central.experimental_local_results(outputs):
        assert sorted(np.unique(value)) == [0.0, 2.0]


def test_one_replica_needs_no_wrapper():
    strategy = make_strategy("central", 1)
    variable = _variable(strategy, Aggregation.SUM)
    assert not isinstance(variable, CentralVariable)
    strategy.run(lambda: variable.assign_add([1.0, 1.0]))
    np.testing.assert_array_equal(variable, [11.0, 11.0])
