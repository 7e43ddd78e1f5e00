"""The functions of maps over batches, for other numbers of rows than they were traced for.

With `drop_remainder=True` a function is traced for batches of B rows, and B may be a constant of
its graph. If no op looks at several rows, the same graph is right for a share: B is the size of the
global batch there, too. A function that the user declares to treat each row by itself is traced
again for any number of rows, if that can be done without another result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist._types import Nested
from tfdist.data.cut import nodes
from tfdist.data.cut.by_row import first_op_over_rows
from tfdist.internals.tensorflow import structure

_TRACED = "tfdist_traced_for_any_rows"


def as_traced(node: Any) -> Callable[[Nested], Nested]:
    """Returns the function of a map, which is not traced again: its text may have effects."""
    wrapper = node._map_func

    def call(element: Nested) -> Any:
        made = wrapper.function(*structure.to_tensor_list(wrapper._input_structure, element))
        leaves = list(made) if isinstance(made, (list, tuple)) else [made]
        return structure.from_compatible_tensor_list(wrapper.output_structure, leaves)

    return call


def for_any_rows(node: Any) -> Callable[[Nested], Nested]:
    """Returns the function of a map over batches, for batches of any number of rows.

    Args:
      node: a map for which `why_not_for_any_rows` returns `None`.
    """
    if _takes_any_rows(node):
        return as_traced(node)
    if first_op_over_rows(node) is None:
        return _graph_of(node)
    return as_traced(_traced_again(node))


def why_not_for_any_rows(node: Any) -> str | None:
    """Says why a map that the user declares to be per row runs for its batch size alone."""
    if _takes_any_rows(node) or first_op_over_rows(node) is None:
        return None
    try:
        other = _traced_again(node)
        same = _traced(node, nodes.below(node).element_spec)
    except Exception as error:  # of the user's function
        return f"it cannot be traced for fewer rows: {str(error).partition(chr(10))[0]}"
    if _outline(same) != _outline(node):
        return "traced again, it has another graph"
    if not nodes.has_same_structure(other, node):
        return "traced for fewer rows, it has another result"
    return None


def _takes_any_rows(node: Any) -> bool:
    return all(
        spec.shape.rank is None or spec.shape[:1] == [None]
        for spec in tf.nest.flatten(node._map_func._input_structure)
        if hasattr(spec, "shape")  # the spec of None has none
    )


def _graph_of(node: Any) -> Callable[[Nested], Nested]:
    """Returns a function that runs the graph of a map."""
    wrapper = node._map_func
    graph, captured = wrapper.function.graph, wrapper.function.captured_inputs
    takes, gives = _for_any(wrapper._input_structure), _for_any(wrapper.output_structure)

    def call(element: Nested) -> Any:
        here = tf.compat.v1.get_default_graph()
        given = structure.to_tensor_list(takes, element)
        given += [here.capture(tensor) for tensor in captured]
        leaves = tf.graph_util.import_graph_def(
            graph.as_graph_def(),
            {tensor.name: value for tensor, value in zip(graph.inputs, given, strict=True)},
            [tensor.name for tensor in graph.outputs],
        )
        # Shapes that Python alone has set are not in the graph.
        for leaf, spec in zip(leaves, structure.get_flat_tensor_specs(gives), strict=True):
            leaf.set_shape(spec.shape)
        return structure.from_compatible_tensor_list(gives, leaves)

    return call


def _traced_again(node: Any) -> Any:
    """Returns a map with the same function, traced for any number of rows."""
    found = vars(node).get(_TRACED)
    if found is None:
        found = _traced(node, _for_any(nodes.below(node).element_spec))
        setattr(node, _TRACED, found)
    return found


def _traced(node: Any, spec: Any) -> Any:
    source = tf.data.experimental.from_variant(nodes.below(node)._variant_tensor, spec)
    return nodes.inner(source.map(node._map_func._func))


def _outline(node: Any) -> list[tuple[str, bytes]]:
    """The ops of a map's function, with the values of its constants, in any order."""
    return sorted(_outline_of(node))


def _outline_of(node: Any) -> Iterator[tuple[str, bytes]]:
    for op in nodes.operations(node._map_func.function):
        value = op.attr["value"].SerializeToString() if op.op == "Const" else b""
        yield op.op, value


def _for_any(specs: Any) -> Any:
    """The same structure of specs, for any number of rows."""
    return tf.nest.map_structure(_spec_for_any, specs)


def _spec_for_any(spec: Any) -> Any:
    if not getattr(spec, "shape", None):
        return spec
    shape = [None, *spec.shape[1:]]
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    return type(spec)(shape, spec.dtype)
