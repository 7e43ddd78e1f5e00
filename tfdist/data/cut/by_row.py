"""Whether a map over batches treats each row by itself, as its graph tells.

A tensor of the graph either does not depend on the batch, or has rows: row i follows from row i of
the batch alone. It is the same to the last bit for any number of rows, except the sign of a zero of
`maximum`. An op that is not known to make such a tensor may look at several rows. Sums of
floating-point numbers and `exp` are not known to: their last bit depends on the place of a value in
the batch. So does the integer that a cast makes of a value which it cannot hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.data.cut import nodes
from tfdist.internals.tensorflow import structure

# Whether the outputs of an op have rows, if some of its inputs have.
_Rule = Callable[[tf.Operation, Sequence[bool]], bool]


def first_op_over_rows(node: Any) -> str | None:
    """Returns the type of the first op that may look at several rows; `None` if there is none.

    Args:
      node: a map over batches.
    """
    wrapper = node._map_func
    function = wrapper.function
    if not hasattr(function, "graph"):
        return "map_with_legacy_function"
    for op in nodes.operations(function):
        if nodes.depends_on_calls(op.op) or op.op.startswith(nodes.PYTHON):
            return op.op
    arguments = len(structure.get_flat_tensor_specs(wrapper._input_structure))
    inputs = function.graph.inputs
    try:
        outputs = _walk(function.graph, [i < arguments for i in range(len(inputs))])
    except _OverRows as found:
        return str(found)
    for tensor, has_rows in zip(function.graph.outputs, outputs, strict=True):
        if not (has_rows and tensor.shape.rank):
            while tensor.op.type == "Identity":
                tensor = tensor.op.inputs[0]
            return tensor.op.type
    return None


class _OverRows(Exception):
    """An op may look at several rows."""


def _walk(graph: tf.Graph, inputs: Sequence[bool]) -> list[bool]:
    """Returns which outputs of a function's graph have rows; raises _OverRows.

    Args:
      graph: of the function.
      inputs: which of its inputs have rows.
    """
    with_rows = _chosen(graph.inputs, inputs)
    # Of tensors with rows: the number of rows, and vectors of sizes of which it is the first.
    counts: set[Any] = set()
    shapes: set[Any] = set()
    for op in graph.get_operations():
        rows = [tensor.ref() in with_rows for tensor in op.inputs]
        sizes = [tensor.ref() in shapes | counts for tensor in op.inputs]
        outputs = {output.ref() for output in op.outputs}
        if op.type in ("PartitionedCall", "StatefulPartitionedCall") and not any(sizes):
            called = graph._get_function(op.get_attr("f").name)
            if _is_compiled(graph, op.get_attr("f").name):
                raise _OverRows("a function with jit_compile")
            with_rows |= _chosen(op.outputs, _walk(called.graph, rows))
        elif op.type in _BRANCHES and not rows[0] and not any(sizes):
            with_rows |= _chosen(op.outputs, _walk_branches(graph, op, rows[1:]))
        elif op.type == "Shape" and rows == [True]:
            shapes |= outputs
        elif op.type == "Reshape" and rows == [True, False] and op.inputs[1].ref() in shapes:
            with_rows |= outputs
        elif op.type == "Slice" and rows == [True, False, False] and op.inputs[2].ref() in shapes:
            if not _begins_at_0(op):
                raise _OverRows("Slice")
            with_rows |= outputs
        elif op.type == "Unpack" and op.inputs[0].ref() in shapes:
            counts.add(op.outputs[0].ref())
        elif any(sizes):
            kept = _kept_sizes(op, sizes)
            if op.outputs[0].shape.rank == 0:
                counts |= outputs if kept else set()
            else:
                shapes |= outputs if kept else set()
        elif any(rows):
            if not _RULES.get(op.type, _no_rows)(op, rows):
                raise _OverRows(op.type)
            with_rows |= outputs
    if any(tensor.ref() in shapes | counts for tensor in graph.outputs):
        raise _OverRows("Shape")
    return [tensor.ref() in with_rows for tensor in graph.outputs]


def _walk_branches(graph: tf.Graph, op: tf.Operation, inputs: Sequence[bool]) -> list[bool]:
    """Returns which outputs of a conditional have rows; raises _OverRows.

    Args:
      graph: has the conditional, whose condition does not depend on the batch.
      op: the conditional.
      inputs: which inputs of its branches have rows.
    """
    branches = [
        _walk(graph._get_function(function.name).graph, inputs)
        for function in _BRANCHES[op.type](op)
    ]
    for outputs in zip(*branches, strict=True):
        if any(outputs) and not all(outputs):
            raise _OverRows(op.type)
    return branches[0]


def _is_compiled(graph: tf.Graph, function: str) -> bool:
    """Whether XLA compiles a function; its code may differ from one number of rows to another."""
    return any(
        definition.attr["_XlaMustCompile"].b
        for definition in graph.as_graph_def().library.function
        if definition.signature.name == function
    )


def _chosen(tensors: Sequence[tf.Tensor], chosen: Sequence[bool]) -> set[Any]:
    return {tensor.ref() for tensor, is_one in zip(tensors, chosen, strict=True) if is_one}


def _kept_sizes(op: tf.Operation, sizes: Sequence[bool]) -> bool:
    """Whether the result of an op on sizes begins with the number of rows, or lacks it.

    Args:
      op: the op.
      sizes: which of its inputs begin with the number of rows.
    """
    if op.type in ("Cast", "Identity"):
        return True
    if op.type in ("ConcatV2", "Pack") and sizes[0] and not any(sizes[1:]):
        axis = op.get_attr("axis") if op.type == "Pack" else _value(op.inputs[-1])
        if axis == 0:
            return True
    if op.type == "StridedSlice" and sizes == [True, False, False, False]:
        taken = _taken(op)
        if taken is not None and not taken[1:].count(0):
            return taken[:1] == [0]
    raise _OverRows("Shape")


def _taken(op: tf.Operation) -> list[int] | None:
    """Which elements of a vector an op StridedSlice takes; `None` if that is unknown."""
    found = [_value(tensor) for tensor in op.inputs[1:]]
    bounds = [int(value[0]) for value in found if value is not None and value.size == 1]
    length = op.inputs[0].shape[0] if op.inputs[0].shape.rank == 1 else None
    masks = op.get_attr("ellipsis_mask") | op.get_attr("new_axis_mask")
    if length is None or masks or len(bounds) != 3:
        return None
    begin, end, stride = bounds
    if op.get_attr("shrink_axis_mask"):
        return [begin % length]
    first = None if op.get_attr("begin_mask") else begin
    last = None if op.get_attr("end_mask") else end
    return list(range(length))[first:last:stride]


def _no_rows(op: tf.Operation, rows: Sequence[bool]) -> bool:
    return False


def _by_element(op: tf.Operation, rows: Sequence[bool]) -> bool:
    """Inputs with rows have the first dimension of the result; the other ones are broadcast."""
    rank = op.outputs[0].shape.rank
    # Divisions of complex numbers round by their place in the batch.
    if not rank or any(value.dtype.is_complex for value in op.inputs):
        return False
    return all(
        value.shape.rank == rank
        if has_rows
        else value.shape.rank is not None and (value.shape.rank < rank or value.shape[0] == 1)
        for value, has_rows in zip(op.inputs, rows, strict=True)
    )


def _cast(op: tf.Operation, rows: Sequence[bool]) -> bool:
    """A value out of the range of a small integer is cut off, or wraps, by its place."""
    source, result = op.inputs[0].dtype, op.outputs[0].dtype
    is_small = result.is_integer and (result.size < 4 or result == tf.uint32)
    return _by_element(op, rows) and not (source.is_floating and is_small)


def _is_first(op: tf.Operation, rows: Sequence[bool]) -> bool:
    """The other inputs do not depend on the batch, and the op leaves the first dimension alone."""
    return rows[0] and not any(rows[1:]) and bool(op.inputs[0].shape.rank)


def _is_second(op: tf.Operation, rows: Sequence[bool]) -> bool:
    return not rows[0] and rows[1] and not any(rows[2:]) and bool(op.inputs[1].shape.rank)


def _are_all(op: tf.Operation, rows: Sequence[bool]) -> bool:
    return all(rows) and all(value.shape.rank for value in op.inputs)


def _over_other_axes(axis: int) -> _Rule:
    """The axes are input `axis`."""

    def rule(op: tf.Operation, rows: Sequence[bool]) -> bool:
        return _is_first(op, rows) and _are_others(_value(op.inputs[axis]), op.inputs[0].shape.rank)

    return rule


def _sum(op: tf.Operation, rows: Sequence[bool]) -> bool:
    return op.inputs[0].dtype.is_integer and _over_other_axes(1)(op, rows)


def _greatest(op: tf.Operation, rows: Sequence[bool]) -> bool:
    """They are chosen along the last axis."""
    return _is_first(op, rows) and op.inputs[0].shape.rank > 1


def _expand_dims(op: tf.Operation, rows: Sequence[bool]) -> bool:
    return _is_first(op, rows) and _are_others(_value(op.inputs[1]), op.inputs[0].shape.rank + 1)


def _squeeze(op: tf.Operation, rows: Sequence[bool]) -> bool:
    axes = np.asarray(op.get_attr("squeeze_dims"))
    return _is_first(op, rows) and _are_others(axes, op.inputs[0].shape.rank)


def _one_hot(op: tf.Operation, rows: Sequence[bool]) -> bool:
    return _is_first(op, rows) and op.get_attr("axis") != 0


def _reshape(op: tf.Operation, rows: Sequence[bool]) -> bool:
    """The dimensions of a row are known before and after it."""
    shape = _value(op.inputs[1])
    if not _is_first(op, rows) or shape is None or shape.size == 0:
        return False
    before = op.inputs[0].shape[1:]
    return (
        shape[0] == -1
        and before.is_fully_defined()
        and before.num_elements() == np.prod(shape[1:], dtype=np.int64) > 0
    )


def _ensure_shape(op: tf.Operation, rows: Sequence[bool]) -> bool:
    sizes = op.get_attr("shape").dim
    return _is_first(op, rows) and len(sizes) > 0 and sizes[0].size < 0


def _transpose(op: tf.Operation, rows: Sequence[bool]) -> bool:
    order = _value(op.inputs[1])
    return _is_first(op, rows) and order is not None and order.size > 0 and order[0] == 0


def _strided_slice(op: tf.Operation, rows: Sequence[bool]) -> bool:
    """The first dimension is taken whole, by `:` or as a part of `...`."""
    strides = _value(op.inputs[3])
    if not _is_first(op, rows) or strides is None or strides.size == 0:
        return False

    def masks(name: str) -> list[bool]:
        return [bool(op.get_attr(name) & 1 << i) for i in range(strides.size)]

    dots, new = masks("ellipsis_mask"), masks("new_axis_mask")
    if dots[0]:
        return strides.size - 1 - sum(new[1:]) < op.inputs[0].shape.rank
    whole = masks("begin_mask")[0] and masks("end_mask")[0] and strides[0] == 1
    return whole and not new[0] and not masks("shrink_axis_mask")[0]


def _slice(op: tf.Operation, rows: Sequence[bool]) -> bool:
    size = _value(op.inputs[2])
    return _is_first(op, rows) and _begins_at_0(op) and size is not None and size[0] == -1


def _begins_at_0(op: tf.Operation) -> bool:
    """Whether a slice begins at the first row."""
    begin = _value(op.inputs[1])
    return begin is not None and begin[0] == 0


def _pad(op: tf.Operation, rows: Sequence[bool]) -> bool:
    paddings = _value(op.inputs[1])
    return _is_first(op, rows) and paddings is not None and not paddings[0].any()


def _tile(op: tf.Operation, rows: Sequence[bool]) -> bool:
    multiples = _value(op.inputs[1])
    return _is_first(op, rows) and multiples is not None and multiples[0] == 1


def _concat(op: tf.Operation, rows: Sequence[bool]) -> bool:
    *values, axis = op.inputs
    return all(rows[:-1]) and not rows[-1] and _are_others(_value(axis), values[0].shape.rank)


def _pack(op: tf.Operation, rows: Sequence[bool]) -> bool:
    rank = op.inputs[0].shape.rank
    return _are_all(op, rows) and _are_others(np.asarray(op.get_attr("axis")), rank + 1)


def _unpack(op: tf.Operation, rows: Sequence[bool]) -> bool:
    axis = np.asarray(op.get_attr("axis"))
    return _is_first(op, rows) and _are_others(axis, op.inputs[0].shape.rank)


def _split(op: tf.Operation, rows: Sequence[bool]) -> bool:
    axis, value = op.inputs
    return rows == [False, True] and _are_others(_value(axis), value.shape.rank)


def _split_by_sizes(op: tf.Operation, rows: Sequence[bool]) -> bool:
    value, _, axis = op.inputs
    return _is_first(op, rows) and _are_others(_value(axis), value.shape.rank)


def _gather(op: tf.Operation, rows: Sequence[bool]) -> bool:
    """Rows of numbers are looked up in a table, or each row's parts are taken."""
    axis = _value(op.inputs[2])
    if axis is not None and op.get_attr("batch_dims") > 0:
        return rows == [True, True, False] and _are_others(axis, op.inputs[0].shape.rank)
    if axis is None or op.get_attr("batch_dims") != 0:
        return False
    if rows[0]:
        return _is_first(op, rows) and _are_others(axis, op.inputs[0].shape.rank)
    return _is_second(op, rows) and axis == 0


def _gather_nd(op: tf.Operation, rows: Sequence[bool]) -> bool:
    return rows == [False, True] and (op.inputs[1].shape.rank or 0) > 1


def _parse_example(op: tf.Operation, rows: Sequence[bool]) -> bool:
    """All features have the same shape in each row."""
    serialized = [value for value, has_rows in zip(op.inputs, rows, strict=True) if has_rows]
    return (
        len(serialized) == 1
        and serialized[0] is op.inputs[0]
        and op.inputs[0].shape.rank == 1
        and op.get_attr("num_sparse") == 0
        and not op.get_attr("ragged_value_types")
        and all(output.shape[1:].is_fully_defined() for output in op.outputs)
    )


def _value(tensor: tf.Tensor) -> np.ndarray | None:
    """The value of a tensor that is known before the graph runs."""
    if tensor.op.type == "Reshape":
        value, shape = map(_value, tensor.op.inputs)
        return None if value is None or shape is None else value.reshape(shape)
    return tf.get_static_value(tensor)


def _are_others(axes: np.ndarray | None, rank: int | None) -> bool:
    """Whether there are axes, of a tensor of some rank, and none of them is the first one."""
    if axes is None or not rank or not np.size(axes):
        return False
    return bool(np.all(np.asarray(axes) % rank != 0))


def _rules() -> dict[str, _Rule]:
    by_rule: dict[_Rule, str] = {
        _by_element: (
            "Abs Add AddV2 AsString BitwiseAnd BitwiseOr BitwiseXor Bucketize Ceil "
            "CheckNumerics ClipByValue DecodeBase64 Div DivNoNan EncodeBase64 Equal Floor "
            "FloorDiv FloorMod Greater GreaterEqual Identity Invert IsFinite IsInf IsNan "
            "LeftShift Less LessEqual LogicalAnd LogicalNot LogicalOr Maximum Minimum Mul "
            "MulNoNan Neg NotEqual OnesLike PreventGradient RealDiv RightShift Rint "
            "Round SelectV2 Sign Square SquaredDifference StaticRegexFullMatch "
            "StaticRegexReplace StopGradient StringJoin StringLength StringLower StringStrip "
            "StringToHashBucket StringToHashBucketFast StringToHashBucketStrong StringToNumber "
            "StringUpper Sub Substr TruncateDiv TruncateMod ZerosLike"
        ),
        _cast: "Cast",
        _is_first: (
            "AdjustHue AdjustSaturation BiasAdd DecodeCSV DecodePaddedRaw DecodeRaw DepthToSpace "
            "ExtractImagePatches RegexFullMatch RegexReplace ResizeArea ResizeBicubic "
            "ResizeBilinear ResizeNearestNeighbor SpaceToDepth UnicodeTranscode"
        ),
        _is_second: "LookupTableFind LookupTableFindV2",
        _over_other_axes(1): "All Any ArgMax ArgMin Max Min ReverseV2",
        _over_other_axes(2): "Roll",
        _sum: "Cumprod Cumsum Prod Sum",
        _greatest: "TopKV2",
        _expand_dims: "ExpandDims",
        _squeeze: "Squeeze",
        _one_hot: "OneHot",
        _reshape: "Reshape",
        _ensure_shape: "EnsureShape",
        _transpose: "Transpose",
        _strided_slice: "StridedSlice",
        _slice: "Slice",
        _pad: "MirrorPad Pad PadV2",
        _tile: "Tile",
        _concat: "ConcatV2",
        _pack: "Pack",
        _unpack: "Unpack",
        _split: "Split",
        _split_by_sizes: "SplitV",
        _gather: "GatherV2",
        _gather_nd: "GatherNd",
        _parse_example: "ParseExampleV2",
    }
    return {op: rule for rule, ops in by_rule.items() for op in ops.split()}


# Conditionals, with their branches.
_BRANCHES: dict[str, Callable[[tf.Operation], Sequence[Any]]] = {
    **dict.fromkeys(
        ("If", "StatelessIf"), lambda op: [op.get_attr("then_branch"), op.get_attr("else_branch")]
    ),
    **dict.fromkeys(("Case", "StatelessCase"), lambda op: op.get_attr("branches")),
}
_RULES = _rules()
OPS = frozenset(_RULES)
"""The ops that may treat each row by itself."""
