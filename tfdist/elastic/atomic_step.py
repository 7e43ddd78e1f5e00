"""Makes a traced step atomic: nothing is written unless all its collectives succeed.

Without this a step that loses a peer leaves some variables updated and others not: an optimizer
assigns its weight decay before the gradients are reduced, and each variable waits for its own
bucket only.

    forward   backward   bucket 1  bucket 2   metrics       all collectives of the step
                               \\      |      /
                                   gate
                               /      |      \\
    weight decay   updates   iterations   seeds   BatchNormalization's averages   all its writes

Writes that a collective needs cannot wait for it, such as the writes of the first of two
optimizers, if the second one's gradients need the new weights. Their variables are copied before
the first such write, and `AtomicStep.undo` brings the old values back after a failure.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterable, Iterator

import tensorflow as tf

# TensorFlow has no public way to see the order that a function's side effects have, or to add to
# it. These trace a function, and tell its reads from its writes.
from tfdist.internals.tensorflow import (
    ResourceVariable,
    auto_control_deps,
    func_graph,
    handle_data_util,
)

_STEP = "_tfdist_atomic_step"
_log = logging.getLogger("tfdist.elastic")
# Reading input is not undone: a step that is made again gets the same batch again.
_INPUT_OPS = {"IteratorGetNext", "IteratorGetNextAsOptional", "MultiDeviceIteratorGetNextFromShard"}
# Parameter servers forget what a step has sent unless it is committed. Their operations name
# variables that have no values.
_SERVER_OPS = {"TfdistPsPull", "TfdistPsStage", "TfdistPsStageRows", "TfdistPsPush"}
_COMMIT = "TfdistPsCommit"
# Ops with an effect outside of variables, once the step has succeeded.
_AFTER_GATE = {_COMMIT, "TfdistCountStep"}


@dataclasses.dataclass(frozen=True)
class _Copies:
    """The copies of one function.

    Attributes:
      handles: the resources of the variables.
      are_needed: whether a call has made the copies and has not passed its gate, bool[].
    """

    handles: list[tf.Tensor]
    are_needed: ResourceVariable


class AtomicStep:
    """The knowledge about the functions that make one step.

    Attributes:
      written: the resources of all variables that a function writes, in the order of the first
        write; eager tensors.
    """

    def __init__(self) -> None:
        self.written: list[tf.Tensor] = []
        self._shadows: dict[int, ResourceVariable] = {}
        self._copies: list[_Copies] = []

    def make_atomic(self, graph: func_graph.FuncGraph) -> None:
        """Makes a function that is being traced atomic.

        Args:
          graph: the function's graph.
        """
        setattr(graph, _STEP, self)

    @property
    def is_torn(self) -> bool:
        """Whether a call has written variables early, and has failed."""
        return any(bool(copies.are_needed) for copies in self._copies)

    def is_private(self, handle: tf.Tensor) -> bool:
        """Whether a resource belongs to a variable of this object."""
        own = (*self._shadows.values(), *(copies.are_needed for copies in self._copies))
        return any(variable.handle is handle for variable in own)

    def undo(self) -> None:
        """Undoes the early writes of calls that have failed."""
        for copies in self._copies:
            if not copies.are_needed:
                continue
            for handle in copies.handles:
                value = self._shadows[id(handle)].read_value()
                tf.raw_ops.AssignVariableOp(resource=handle, value=value)
            copies.are_needed.assign(False)

    def add_written(self, handles: Iterable[tf.Tensor]) -> None:
        """Adds resources of variables that a function writes; eager tensors."""
        known = {id(handle) for handle in self.written}
        for handle in handles:
            if id(handle) not in known:
                known.add(id(handle))
                self.written.append(handle)

    def add_copies(
        self, handles: list[tf.Tensor]
    ) -> tuple[list[ResourceVariable], ResourceVariable]:
        """Prepares the copies of a function.

        Args:
          handles: eager tensors, the variables' resources.

        Returns:
          The variables for the copies, and `_Copies.are_needed`.
        """
        with tf.init_scope():
            for handle in handles:
                if id(handle) not in self._shadows:
                    self._shadows[id(handle)] = _variable_like(handle)
            are_needed = ResourceVariable(False, trainable=False, name="copies_are_needed")
        self._copies.append(_Copies(handles, are_needed))
        return [self._shadows[id(handle)] for handle in handles], are_needed


def type_of(handle: tf.Tensor) -> tuple[tf.DType, tf.TensorShape] | None:
    """Returns the dtype and the static shape of a variable; `None` if it is something else."""
    data = handle_data_util.get_handle_data(handle)
    if data is None or not data.is_set or not data.shape_and_type:
        return None
    return tf.as_dtype(data.shape_and_type[0].dtype), tf.TensorShape(data.shape_and_type[0].shape)


def read(handle: tf.Tensor) -> tf.Tensor:
    """Returns the value of the variable of a resource."""
    found = type_of(handle)
    assert found is not None
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=found[0])


def written(op: tf.Operation) -> Iterator[tf.Tensor]:
    """Yields the resources that an operation of a function may write."""
    if auto_control_deps.op_is_stateful(op) and op.type not in {*_INPUT_OPS, *_SERVER_OPS, _COMMIT}:
        for resource, kind in auto_control_deps._get_resource_inputs(op):
            if kind == auto_control_deps.ResourceType.READ_WRITE:
                yield resource


def _with_gates(trace: Callable[..., func_graph.FuncGraph]) -> Callable[..., func_graph.FuncGraph]:
    """Returns a function that traces as `trace` does, and holds the writes of atomic steps back."""

    @functools.wraps(trace)
    def traced(*args, **kwargs):
        graph = trace(*args, **kwargs)
        step = getattr(graph, _STEP, None)
        if step is not None:
            with graph.as_default():
                graph.control_outputs.extend(_hold_back_writes(graph, step))
        return graph

    return traced


# The order of a function's side effects is complete only when TensorFlow has traced it, and then it
# calls no hook.
func_graph.func_graph_from_py_func = _with_gates(func_graph.func_graph_from_py_func)


def _hold_back_writes(graph: func_graph.FuncGraph, step: AtomicStep) -> list[tf.Operation]:
    """Returns new operations that the function must run."""
    operations = graph.get_operations()
    collectives = [op for op in operations if communicates(op.node_def, graph)]
    needed = _with_ancestors(collectives)
    gate = tf.no_op("gate")
    gate._add_control_inputs(collectives)
    early: list[tuple[tf.Operation, tf.Tensor]] = []
    late: list[tf.Tensor] = []
    for op in operations:
        if op.type in _AFTER_GATE:
            op._add_control_input(gate)
        for resource in written(op):
            if op in needed:
                early.append((op, resource))
            else:
                late.append(resource)
                op._add_control_input(gate)
    handles = _variables(graph, early)
    outer = [_eager(graph, handle) for handle in handles]
    others = (_eager(graph, resource) for resource in late if type_of(resource) is not None)
    step.add_written([handle for handle in (*outer, *others) if handle is not None])
    own = [
        (handle, eager) for handle, eager in zip(handles, outer, strict=True) if eager is not None
    ]
    if not own:
        return []
    copied, passed = _copy(own, step, gate)
    names = {handle.ref() for handle, _ in own}
    for op, resource in early:
        if resource.ref() in names:
            op._add_control_input(copied)
    return [passed]


def _copy(
    handles: list[tuple[tf.Tensor, tf.Tensor]], step: AtomicStep, gate: tf.Operation
) -> tuple[tf.Operation, tf.Operation]:
    """Adds the copies to the function whose graph is the current one.

    Args:
      handles: resources of variables, each in the function and outside of it.
      step: gets the copies.
      gate: after it no copy is needed.

    Returns:
      An operation after which the variables may be written, and an operation that the function must
      run.
    """
    copies, are_needed = step.add_copies([outer for _, outer in handles])
    made = [
        shadow.assign(read(handle), read_value=False)
        for shadow, (handle, _) in zip(copies, handles, strict=True)
    ]
    with tf.control_dependencies(made):
        copied = are_needed.assign(True, read_value=False)
    with tf.control_dependencies([gate]):
        return copied, are_needed.assign(False, read_value=False)


def _variable_like(handle: tf.Tensor) -> ResourceVariable:
    found = type_of(handle)
    assert found is not None
    dtype, shape = found
    # The variable may have no value yet.
    value = tf.zeros(shape if shape.is_fully_defined() else [0], dtype)
    return ResourceVariable(value, trainable=False, name="shadow", shape=shape)


def _with_ancestors(operations: Iterable[tf.Operation]) -> set[tf.Operation]:
    """Returns operations and all that they wait for."""
    found = set(operations)
    waiting = list(found)
    while waiting:
        op = waiting.pop()
        for before in (*(tensor.op for tensor in op.inputs), *op.control_inputs):
            if before not in found:
                found.add(before)
                waiting.append(before)
    return found


def communicates(node: tf.compat.v1.NodeDef, graph: func_graph.FuncGraph) -> bool:
    """Whether an operation is a collective, or a call of a function that has one."""
    if "communicator" in node.attr and "key" in node.attr:
        return True
    called = [value.func.name for value in node.attr.values() if value.HasField("func")]
    return any(
        communicates(inner, graph)
        for name in called
        for inner in graph._get_function(name).cached_definition.node_def
    )


def _variables(
    graph: func_graph.FuncGraph, writes: list[tuple[tf.Operation, tf.Tensor]]
) -> list[tf.Tensor]:
    """Returns the resources of `writes` that are variables; warns of the others."""
    found: dict[object, tf.Tensor] = {}
    for op, resource in writes:
        if type_of(resource) is not None:
            found[resource.ref()] = resource
        else:
            _log.warning(
                "%s: %s (%s) writes something that is no variable before the step's collectives "
                "have ended: when the step is made again, it writes again",
                graph.name,
                op.name,
                op.type,
            )
    return list(found.values())


def _eager(graph: func_graph.FuncGraph, tensor: tf.Tensor) -> tf.Tensor | None:
    """Returns what a function's graph, or a function around it, has captured as `tensor`.

    `None` if it has captured nothing: the variable is the function's own, and new in each call.
    """
    while not hasattr(tensor, "numpy"):
        captured = [outer for outer, inner in graph.captures if inner is tensor]
        if not captured:
            return None
        (tensor,) = captured
        graph = graph.outer_graph
    return tensor
