"""TensorFlow's own tests of strategies, from its wheel, on tfdist's strategies.

`strategy_test_lib` has test bodies in base classes, for each strategy's tests to run. Here every
applicable body runs on every strategy, in eager mode and in a graph with a session. Excluded are
only bodies that cannot run:

- `_test_numpy_dataset` is for strategies of TensorFlow 1.
- `_testDeviceScope` and `_test_device_and_input_device_are_colocated*` are for TensorFlow servers,
  which tfdist's strategies do not use.
- `tf.gradients` does not exist in eager mode, outside a tf.function.
- `_test_input_fn_iterable` in a graph needs an attribute that TensorFlow 2 datasets do not have.
- Bodies that expect the results of two devices do not run on four.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.distribute import strategy_test_lib as upstream

import tfdist
from devices.replicas import DEVICES, make_strategy

STRATEGIES = {
    "mirrored": lambda: make_strategy("mirrored", 2),
    "central": lambda: make_strategy("central", 2),
    "one_device": lambda: tfdist.OneDeviceStrategy("CPU:0"),
    # Uses all devices.
    "multi_worker_alone": tfdist.MultiWorkerMirroredStrategy,
}
REPLICAS = {"mirrored": 2, "central": 2, "one_device": 1, "multi_worker_alone": DEVICES}

# A body gets a test case, whose assertions it uses, and a strategy.
Body = Callable[[Any, tf.distribute.Strategy], None]


def _of_base(method: str, **arguments: Any) -> Body:
    return lambda case, strategy: getattr(case, method)(strategy, **arguments)


def _input_fn_iterable(case, strategy):
    replicas = strategy.num_replicas_in_sync
    make_input = case._input_fn_to_test_input_context(
        lambda: tf.data.Dataset.range(5 * replicas),
        expected_num_replicas_in_sync=replicas,
        expected_num_input_pipelines=1,
        expected_input_pipeline_id=0,
    )
    steps = [[step * replicas + r for r in range(replicas)] for step in range(5)]
    case._test_input_fn_iterable(strategy, make_input, steps)


EAGER, GRAPH = "eager", "graph"
BOTH = (EAGER, GRAPH)

# Bodies by name, with the modes they can run in.
FOR_ALL: dict[str, tuple[Body, tuple[str, ...]]] = {
    "replica_id": (_of_base("_test_replica_id"), BOTH),
    "call_and_merge_exceptions": (_of_base("_test_call_and_merge_exceptions"), BOTH),
    "summary_for_replica_zero_only": (_of_base("_test_summary_for_replica_zero_only"), BOTH),
    "global_step_update": (_of_base("_test_global_step_update"), BOTH),
    "trainable_variable": (_of_base("_test_trainable_variable"), BOTH),
    "input_fn_iterable": (_input_fn_iterable, (EAGER,)),
    # From the base for one remote worker; they apply to a local worker too.
    "num_replicas_in_sync": (_of_base("_testNumReplicasInSync"), BOTH),
    "minimize_loss": (_of_base("_testMinimizeLoss"), BOTH),
    "iterator_with_dataset": (_of_base("_testMakeInputFnIteratorWithDataset"), BOTH),
    "iterator_with_callable": (_of_base("_testMakeInputFnIteratorWithCallable"), BOTH),
}
# Names that the bases for one and for two devices share, with different expected results.
FOR_REPLICA_CONTEXT: dict[str, tuple[str, ...]] = {
    "_test_run": BOTH,
    "_test_all_reduce_sum": BOTH,
    "_test_all_reduce_sum_gradients": (GRAPH,),
    "_test_all_reduce_sum_gradient_tape": BOTH,
    "_test_all_reduce_mean": BOTH,
    "_test_all_reduce_mean_gradients": (GRAPH,),
    "_test_all_reduce_mean_gradient_tape": BOTH,
}


def _bodies(replicas: int) -> dict[str, tuple[Body, tuple[str, ...]]]:
    bodies = dict(FOR_ALL)
    for method, modes in FOR_REPLICA_CONTEXT.items():
        name = method.removeprefix("_test_")
        if replicas <= 2:
            bodies[name] = _of_base(method), modes
        # The base for one device lacks these bodies, and in a graph they would be the same.
        if replicas == 2:
            bodies[f"{name}_in_function"] = _of_base(method, run_in_function=True), (EAGER,)
    return bodies


class _Case(upstream.RemoteSingleWorkerMirroredStrategyBase):
    """Runs one body between TensorFlow's own set-up and tear-down."""

    def __init__(self, body: Body, kind: str) -> None:
        super().__init__()
        self._body, self._kind = body, kind

    def runTest(self) -> None:
        self._body(self, STRATEGIES[self._kind]())

    def _get_num_gpus(self) -> int:
        return REPLICAS[self._kind]

    def cached_session(self, graph=None, config=None, use_gpu=False, force_gpu=False):
        # A body's own configuration does not set the number of CPU devices.
        if config is not None:
            config.device_count["CPU"] = DEVICES
        return super().cached_session(graph, config, use_gpu, force_gpu)


class _OneDeviceCase(_Case, upstream.OneDeviceDistributionTestBase):
    pass


class _TwoDeviceCase(_Case, upstream.TwoDeviceDistributionTestBase):
    pass


@pytest.fixture(autouse=True)
def no_seed_stays():
    """TensorFlow's set-up seeds the default graph, which other tests of the process share."""
    yield
    tf.compat.v1.reset_default_graph()


# pytest would take them for test classes.
for _class in (_Case, _OneDeviceCase, _TwoDeviceCase):
    _class.__test__ = False
CASES = {1: _OneDeviceCase, 2: _TwoDeviceCase, DEVICES: _Case}


@pytest.mark.long(
    "one_device-*-graph",
    "central-iterator*-eager",
    "multi_worker_alone-*-eager",
    covered_by="the other cases",
)
@pytest.mark.filterwarnings(
    # These bodies get the next element in a loop, and their graphs hold TensorFlow 2 datasets.
    r"ignore:An unusually high number of `Iterator.get_next\(\)` calls:UserWarning",
    "ignore:To make it possible to preserve tf.data options:UserWarning",
)
@pytest.mark.parametrize(
    ("kind", "name", "mode"),
    [
        (kind, name, mode)
        for kind, replicas in REPLICAS.items()
        for name, (_, modes) in _bodies(replicas).items()
        for mode in modes
    ],
)
def test_conformance(kind, name, mode):
    replicas = REPLICAS[kind]
    body, _ = _bodies(replicas)[name]
    with tf.Graph().as_default() if mode == GRAPH else contextlib.nullcontext():
        CASES[replicas](body, kind).debug()
