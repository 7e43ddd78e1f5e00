"""Keras 3 in a model_fn: its layers, metrics and optimizers in the graph of an `Estimator`.

Keras 3 is written for eager execution and `tf.function`. In a graph of TensorFlow 1 an assignment
has no effect unless it is run, and a checkpoint identifies variables by their names. Therefore,
while a model_fn runs:

- The counters of names start from zero, so that training, evaluation and export agree on names. A
  `tf.Variable` is named by its Keras path, as in tf_keras.
- Assignments of layers to their own state, such as moving statistics, are run by the `train_op`;
  assignments of metrics by the evaluation.
- The state of metrics and random generators is in no checkpoint, as with tf_keras.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator

import tensorflow as tf
from keras import Sequential
from keras.layers import Layer
from keras.metrics import Metric
from keras.random import SeedGenerator

from tfdist.estimator.keras3.optimizers import accept_variables
from tfdist.internals.keras_3 import BaseOptimizer, Variable, current_path, global_state, name_scope
from tfdist.internals.tensorflow import eager_mode
from tfdist.keras import registry
from tfdist.keras.registry import hooks

v1 = tf.compat.v1
_KEYS = v1.GraphKeys
_STARTED_AFRESH = ("object_name_uids", "global_seed_generator")


class _Call(threading.local):
    """The state of the model_fn call of this thread."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Resets the state."""
        self.runs = False
        # The name scope around the outermost of Keras's own.
        self.scope = ""
        # The path of a model that is made of layers, and not called.
        self.around = ""
        # Whether new variables stay out of checkpoints; and those variables, by id.
        self.is_local = False
        self.local: dict[int, tf.Variable] = {}
        # Variables that were assigned to, and in the same order the operations.
        self.assigned: list[Variable] = []
        self.updates: list[tf.Operation] = []


_call = _Call()


def _in_graph() -> bool:
    return _call.runs and not tf.executing_eagerly()


@functools.cache
def adapt() -> None:
    """Adapts Keras 3 to the graphs of model_fns, and `Estimator` to Keras 3; once.

    Raises:
      UnsupportedKerasError: a function to be replaced is not as expected.
    """
    registry.install(__name__)
    # Model_fns read the updates of layers, to run them.
    Layer.updates = property(lambda layer: [])
    _accept_metrics()
    accept_variables()
    _run_updates()


@contextlib.contextmanager
def model_fn_call() -> Iterator[list[tf.Operation]]:
    """Surrounds the call of a model_fn; yields the list of operations that update layers."""
    if _call.runs:  # a model_fn that calls another
        yield []
        return
    before = {name: global_state.get_global_attribute(name) for name in _STARTED_AFRESH}
    for name in before:
        global_state.set_global_attribute(name, None)
    _call.start()
    _call.runs = True
    try:
        yield _call.updates
    finally:
        _call.start()
        for name, value in before.items():
            global_state.set_global_attribute(name, value)


def _run_updates() -> None:
    """Has `Estimator` call model_fns in `model_fn_call`, and the `train_op` run the updates."""
    from tensorflow_estimator.python.estimator.estimator import Estimator

    original = Estimator._call_model_fn

    @functools.wraps(original)
    def _call_model_fn(self, features, labels, mode, config):
        with model_fn_call() as updates:
            spec = original(self, features, labels, mode, config)
            if spec.train_op is None or not updates:
                return spec
            return spec._replace(train_op=tf.group(spec.train_op, *updates))

    Estimator._call_model_fn = _call_model_fn


@hooks(name_scope, "__enter__")
def note_outermost_scope(original, self):
    """In a model_fn, variables are named below the graph's scope around a layer."""
    if _call.runs and not global_state.get_global_attribute("name_scope_stack"):
        _call.scope = v1.get_default_graph().get_name_scope()
    return original(self)


@hooks(Sequential, "_maybe_rebuild")
def note_model_around(original, self):
    """In a model_fn, the layers of a model that is not called are named as tf_keras names them.

    A model that begins with an Input calls its layers here. tf_keras calls them while the model is
    made, outside the model's own scope.
    """
    before, _call.around = _call.around, f"{current_path()}/{self.name}/".lstrip("/")
    try:
        return original(self)
    finally:
        _call.around = before


@hooks(Variable, "_initialize")
def make_graph_variable(original, self, value):
    """In a model_fn, a variable is a `tf.Variable` of the graph, named by its Keras path."""
    if not _in_graph() or isinstance(value, tf.Variable):
        return original(self, value)
    kinds = {
        "aggregation": tf.VariableAggregation,
        "synchronization": tf.VariableSynchronization,
    }
    # Only options that this release of Keras has.
    options = {
        name: kind[getattr(self, name).upper()]
        for name, kind in kinds.items()
        if hasattr(self, name)
    }
    if _call.is_local:
        _call.local[id(self)] = self
    *scopes, name = self.path.removeprefix(_call.around).split("/")
    # A name that ends with a slash is an absolute scope.
    with v1.name_scope("".join(f"{scope}/" for scope in (_call.scope, *scopes) if scope)):
        self._value = v1.Variable(
            value,
            dtype=tf.as_dtype(self._dtype),
            trainable=self.trainable,
            name=name,
            use_resource=True,
            collections=[_KEYS.LOCAL_VARIABLES if _call.is_local else _KEYS.GLOBAL_VARIABLES],
            **options,
        )
    return None


if hasattr(Variable, "_initialize_with_initializer"):

    @hooks(Variable, "_initialize_with_initializer")
    def make_graph_variable_by_initializer(original, self, initializer):
        """As `make_graph_variable`; not every release of Keras calls that from here."""
        if not _in_graph():
            return original(self, initializer)
        return self._initialize(lambda: initializer(self._shape, dtype=self._dtype))


@hooks(Metric, "add_variable")
@hooks(SeedGenerator, "__init__")
def keep_out_of_checkpoints(original, *args, **kwargs):
    """In a model_fn, the state of metrics and random generators is in no checkpoint."""
    before, _call.is_local = _call.is_local, True
    try:
        return original(*args, **kwargs)
    finally:
        _call.is_local = before


@hooks(Variable, "_direct_assign")
def collect_assignment(original, self, value):
    """In a model_fn, assignments of layers and metrics are collected, to be run by a session."""
    graph = v1.get_default_graph()
    if not _in_graph() or graph.building_function:
        return original(self, value)
    if not global_state.get_global_attribute("current_call_ctx") and id(self) not in _call.local:
        raise RuntimeError(
            f"model_fn: expected assignments to variables by layers and metrics only, received "
            f"one to {self.path!r}, which would be repeated at each step: start from given "
            "values with warm_start_from or a Scaffold's init_fn"
        )
    with tf.control_dependencies(_reads(self._value)):
        update = self._value.assign(tf.cast(value, self._value.dtype))
    _call.assigned.append(self)
    _call.updates.append(update)
    return None


def _reads(variable: tf.Variable) -> list[tf.Operation]:
    """The reads of a variable so far; a graph does not order them before a later assignment."""
    context = variable.graph._get_control_flow_context()
    return [
        op
        for op in variable.handle.consumers()
        if op.type == "ReadVariableOp" and op._get_control_flow_context() is context
    ]


@hooks(SeedGenerator, "next")
def order_random_numbers(original, self, *args, **kwargs):
    """In a model_fn, a random generator's next seed follows its last update."""
    if not _in_graph():
        return original(self, *args, **kwargs)
    pairs = zip(_call.assigned, _call.updates, strict=True)
    with tf.control_dependencies([update for to, update in pairs if to is self.state]):
        return original(self, *args, **kwargs)


@hooks(BaseOptimizer, "__init__")
def describe_optimizer(original, self, *args, **kwargs):
    """In a model_fn, an optimizer makes no variables in the graph.

    Its variables only describe it; see legacy_optimizer. The inner graph is needed because a
    strategy's scope lasts as long as the outer one.
    """
    if not _in_graph():
        return original(self, *args, **kwargs)
    with tf.Graph().as_default(), eager_mode():
        return original(self, *args, **kwargs)


@hooks(BaseOptimizer, "apply")
def refuse_gradients(original, self, *args, **kwargs):
    """In a model_fn, gradients are applied by a legacy optimizer or by a head."""
    if not _in_graph():
        return original(self, *args, **kwargs)
    raise TypeError(
        "model_fn: expected gradients to be applied by an optimizer of "
        "tf_keras.optimizers.legacy or tf.compat.v1.train, or by a head, to which an optimizer "
        f"of Keras 3 may be given, received {type(self).__module__}.{type(self).__name__}.apply"
    )


def _accept_metrics() -> None:
    from tensorflow_estimator.python.estimator import model_fn

    original = model_fn._validate_eval_metric_ops

    @functools.wraps(original)
    def _validate_eval_metric_ops(eval_metric_ops):
        if isinstance(eval_metric_ops, dict):
            eval_metric_ops = {k: _value_and_update(v) for k, v in eval_metric_ops.items()}
        return original(eval_metric_ops)

    model_fn._validate_eval_metric_ops = _validate_eval_metric_ops


def _value_and_update(metric: Metric | tuple) -> tuple:
    """Returns a metric in the package's form: its value, and the operation that updates it."""
    if not isinstance(metric, Metric):
        return metric
    own = {id(variable) for variable in metric.variables}
    updates = [u for v, u in zip(_call.assigned, _call.updates, strict=True) if id(v) in own]
    if not updates:
        raise ValueError(
            f"eval_metric_ops: expected metrics after update_state, received {metric.name!r} of "
            f"{type(metric).__module__}.{type(metric).__name__} before it"
        )
    context = tf.distribute.get_replica_context()
    if tf.distribute.has_strategy() and context is not None:
        return context.merge_call(_result, args=(metric,)), tf.group(*updates)
    return tf.identity(metric.result()), tf.group(*updates)


def _result(strategy: tf.distribute.Strategy, metrics: Metric) -> tf.Tensor:
    """The value from the variables of all replicas."""
    return tf.identity(strategy.experimental_local_results(metrics)[0].result())
