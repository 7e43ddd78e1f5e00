"""Layers whose variables are gathered before use, and again for their gradients.

    forward    gather A    A    gather B    B    gather C    C
    backward   gather C    C'   gather B    B'   gather A    A'

A unit is a layer, or several, whose variables travel together. Its gathered tensors exist while it
computes. The next unit's may arrive meanwhile, so that two units are whole at a time.

TensorFlow's gradient functions use the tensors of the forward pass. `Trace.gather_again` gives
them others, which are gathered when back-propagation comes to the unit. So nothing is computed
twice, and layers need no change: they read a tensor.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import weakref
from collections.abc import Iterator, Sequence
from typing import Protocol

import tensorflow as tf

_ATTRIBUTE = "_tfdist_sharding_trace"
_GRADIENTS = "gradient_tape"  # the scope of gradient functions
_REDUCTIONS = ("EuclideanNorm", "L2Loss", "Max", "Mean", "Min", "Prod", "Sum")
_ELEMENTWISE = (
    *("Abs", "AddN", "AddV2", "Cast", "Identity", "IdentityN"),
    *("Mul", "Pow", "RealDiv", "Reshape", "Square"),
)
# Ops by which layers look at a variable in another form.
_VIEWS = ("Cast", "ExpandDims", "Identity", "Reshape", "Squeeze", "Transpose")


class Gathered(Protocol):
    """A variable that is gathered where it is read: `GatheredVariable`."""

    def part(self) -> tf.Tensor:
        """Reads this worker's part."""

    @property
    def whole_shape(self) -> tf.TensorShape: ...


class Gathers(Protocol):
    """Gathers parts: `Shards`."""

    def gather(
        self, parts: Sequence[tf.Tensor], shapes: Sequence[tf.TensorShape], label: str
    ) -> list[tf.Tensor]:
        """Returns tensors of one dtype, of which each worker gives its part."""


class ShardingUnit:
    """Variables that travel together.

    Args:
      name: of their layer.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.layer = name.rpartition("/")[2]
        self.variables: list[Gathered] = []
        self._paths: set[str] = set()

    def add(self, path: str, variable: Gathered) -> bool:
        """Adds a variable, unless there is one of the same path."""
        if path in self._paths:
            return False
        self._paths.add(path)
        self.variables.append(variable)
        return True

    def position(self, variable: Gathered) -> int:
        """The place of a variable among the unit's."""
        return next(i for i, each in enumerate(self.variables) if each is variable)

    def gather(self, gathers: Gathers, again: bool = False) -> list[tf.Tensor]:
        """Gathers all variables, one message for each dtype."""
        label = f"the variables of {self.name}{', for gradients' if again else ''}"
        parts = [variable.part() for variable in self.variables]
        tensors: list = [None] * len(parts)
        for dtype in dict.fromkeys(part.dtype for part in parts):
            of_dtype = [i for i, part in enumerate(parts) if part.dtype == dtype]
            shapes = [self.variables[i].whole_shape for i in of_dtype]
            gathered = gathers.gather([parts[i] for i in of_dtype], shapes, label)
            for i, tensor in zip(of_dtype, gathered, strict=True):
                tensors[i] = tensor
        return tensors


class Units:
    """The units of a strategy's models.

    Args:
      pattern: a regular expression that matches the path of a unit's layer, such as "block_[0-9]+";
        `None`: each layer is a unit.
    """

    def __init__(self, pattern: str | None) -> None:
        self._pattern = None if pattern is None else re.compile(pattern)
        # The variables hold their unit, so that it is gone when their model is.
        self._newest: weakref.WeakValueDictionary[str, ShardingUnit] = weakref.WeakValueDictionary()

    def add(self, path: str, variable: Gathered) -> ShardingUnit:
        """Returns the unit of a new variable.

        Args:
          path: of the variable, such as "model/block_1/dense/kernel".
          variable: at that path.
        """
        name = self._name(path)
        unit = self._newest.get(name)
        if unit is None or not unit.add(path, variable):  # another model may have the same paths
            unit = self._newest[name] = ShardingUnit(name)
            unit.add(path, variable)
        return unit

    def _name(self, path: str) -> str:
        """The path of the outermost layer that matches, or else of the variable's layer."""
        layer = path.rpartition("/")[0] or path
        if self._pattern is not None:
            names = layer.split("/")
            for end in range(1, len(names) + 1):
                if self._pattern.fullmatch(names[end - 1]):
                    return "/".join(names[:end])
        return layer


@dataclasses.dataclass(eq=False)
class _Gather:
    """One gather of a unit's variables.

    Attributes:
      unit: the gathered unit.
      tensors: the gathered values.
      may_repeat: whether the variables still have these values.
    """

    unit: ShardingUnit
    tensors: list[tf.Tensor]
    may_repeat: bool = True


@dataclasses.dataclass(eq=False)
class _Call:
    """A call of a layer.

    Attributes:
      layer: its name.
      inputs: one of its inputs.
      gathers: of units that are read within this call, and belong to the layer.
    """

    layer: str
    inputs: tf.Tensor
    gathers: dict[ShardingUnit, _Gather] = dataclasses.field(default_factory=dict)


class Trace:
    """The units that a graph gathers.

    A unit is gathered once in each call of its layer. It is not kept for a later call, which may be
    under another gradient tape.

    Args:
      graph: of a function that is being traced.
    """

    def __init__(self, graph: tf.Graph) -> None:
        self._graph = graph
        self._gathers: list[_Gather] = []
        self._calls: list[_Call] = []
        self._before: list[tf.Tensor] = []  # the input of the unit before

    @classmethod
    def of(cls, graph: tf.Graph) -> Trace:
        """Returns the trace of a graph."""
        trace = getattr(graph, _ATTRIBUTE, None)
        if trace is None:
            trace = cls(graph)
            setattr(graph, _ATTRIBUTE, trace)
        return trace

    @contextlib.contextmanager
    def calling(self, layer: str, inputs: tf.Tensor) -> Iterator[None]:
        """Within it a layer is called with an input of this graph."""
        self._calls.append(_Call(layer, inputs))
        try:
            yield
        finally:
            self._calls.pop()

    def read(self, unit: ShardingUnit, variable: Gathered, gathers: Gathers) -> tf.Tensor:
        """Returns a variable's value; the first read within a call of its layer gathers the unit.

        It is gathered when the unit before has its input.
        """
        call = next((call for call in self._calls if call.layer == unit.layer), None)
        gather = None if call is None else call.gathers.get(unit)
        if gather is None:
            with tf.control_dependencies(self._before):
                gather = _Gather(unit, unit.gather(gathers))
            self._gathers.append(gather)
            self._before = [call.inputs for call in self._calls[-1:]]
            if call is not None:
                call.gathers[unit] = gather
        return gather.tensors[unit.position(variable)]

    def assigned(self, unit: ShardingUnit) -> None:
        """Says that a variable of a unit gets another value: it must be gathered anew."""
        for call in self._calls:
            call.gathers.pop(unit, None)
        for gather in self._gathers:
            gather.may_repeat = gather.may_repeat and gather.unit is not unit

    def gather_again(self, gathers: Gathers) -> None:
        """Gathers the units again for the gradient functions that have been traced so far.

        A unit is gathered when back-propagation comes to the unit after it.

        Raises:
          ValueError: something other than an optimizer reduces gradients, of which each worker has
            a part.
        """
        ops = self._graph.get_operations()
        places = {op.name: place for place, op in enumerate(ops)}
        if self._gathers:
            _refuse_reductions(ops)
        anchor: tf.Tensor | None = None
        for gather in reversed(self._gathers):
            users = {op.name: op for tensor in gather.tensors for op in _gradient_users(tensor)}
            if not users or not gather.may_repeat:
                continue
            first = min(users.values(), key=lambda op: places[op.name])
            own = next((t for t in first.inputs if _is_of_gradients(t.op)), None)
            # Only what was traced before the first user cannot depend on it.
            if anchor is None or places[anchor.op.name] >= places[first.name]:
                anchor = own
            with tf.control_dependencies([] if anchor is None else [anchor]):
                again = gather.unit.gather(gathers, again=True)
                for tensor, other in zip(gather.tensors, again, strict=True):
                    _replace(tensor, other)
            anchor = own
        self._gathers.clear()


def _refuse_reductions(ops: Sequence[tf.Operation]) -> None:
    """Raises ValueError if gradients' parts are reduced, such as to a norm."""
    ahead = [op for op in ops if op.type == "TfdistReduceScatter" and _is_of_gradients(op)]
    seen = {op.name for op in ahead}
    while ahead:
        for output in ahead.pop().outputs:
            for user in output.consumers():
                if user.type in _REDUCTIONS:
                    raise ValueError(
                        f"a training step: expected gradients that only an optimizer reduces, "
                        f"received {user.name!r}: with tfdist.Sharding(stage=3) each worker has a "
                        "part of a gradient, and its norm would be the part's. Use the "
                        "optimizer's clipnorm or global_clipnorm, or stage=1"
                    )
                if user.type in _ELEMENTWISE and user.name not in seen:
                    seen.add(user.name)
                    ahead.append(user)


def _is_of_gradients(op: tf.Operation) -> bool:
    return _GRADIENTS in op.name.split("/")


def _gradient_users(tensor: tf.Tensor) -> Iterator[tf.Operation]:
    """Ops of gradient functions that use a tensor, or a view of it."""
    for op in tensor.consumers():
        if _is_of_gradients(op):
            yield op
        elif op.type in _VIEWS:
            yield from _gradient_users(op.outputs[0])


def _replace(tensor: tf.Tensor, other: tf.Tensor) -> None:
    """Replaces a tensor, and views of it, where gradient functions use them."""
    for op in tensor.consumers():
        inputs = [other if t is tensor else t for t in op.inputs]
        if _is_of_gradients(op):
            for i, new in enumerate(inputs):
                if new is other:
                    op._update_input(i, new)
        elif op.type in _VIEWS and any(_gradient_users(op.outputs[0])):
            view = op.graph.create_op(
                op.type, inputs, [op.outputs[0].dtype], attrs=dict(op.node_def.attr)
            )
            _replace(op.outputs[0], view.outputs[0])
