"""The nodes of a `tf.data` pipeline, which TensorFlow tells apart by private classes."""

from __future__ import annotations

import dis
import inspect
import re
import types
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef

from tfdist.internals.tensorflow import op_def_registry, script_ops

MAPS = frozenset({"_MapDataset", "_ParallelMapDataset"})
# They choose and order elements, and look at none.
ORDERS = frozenset(
    {
        "_ShuffleDataset",
        "_RepeatDataset",
        "_TakeDataset",
        "_SkipDataset",
        "_AssertCardinalityDataset",
    }
)
# They change neither the elements nor their order.
PASSES = frozenset({"_OptionsDataset", "_PrefetchDataset"})

# Ops that TensorFlow calls stateful, and whose results do not depend on the number of calls. The
# names end in versions. The functions that are called have nodes of their own.
_SAME_AGAIN = (
    "AnonymousHashTable",
    "Assert",
    "Case",
    "EagerPyFunc",
    "HashTable",
    "If",
    "LookupTableFind",
    "LookupTableSize",
    "MatchingFiles",
    "Placeholder",
    "Print",
    "PyFunc",
    "ReadFile",
    "ReadVariableOp",
    "ResourceGather",
    "StatefulPartitionedCall",
    "VarHandleOp",
    "VarIsInitializedOp",
    "While",
)
PYTHON = ("EagerPyFunc", "PyFunc")  # ops that call Python; their names end in versions
# Their functions are none of the user's.
_ADAPTERS = (
    "keras.src.trainers.data_adapters.",
    "tf_keras.src.engine.data_adapter.",
    "tfdist.keras.",
)
# In the code of a Python function they tell of results that differ from call to call.
_CHANGING = re.compile("choice|rand|rng|shuffle|^next$")


def kind(node: tf.data.Dataset) -> str:
    """Returns the name of a node's class."""
    return type(node).__name__


def inner(node: Any) -> tf.data.Dataset:
    """Returns the node that an adapter of TensorFlow 1 holds, or the node itself."""
    while kind(node) == "DatasetV1Adapter":
        node = node._dataset
    return node


def below(node: Any) -> tf.data.Dataset:
    """Returns the only input of a node."""
    return inner(node._input_dataset)


def has_map(node: Any) -> bool:
    """Whether the user maps elements: a node or one of its inputs, or a function of one, does."""
    node = inner(node)
    own = [each for each in node._functions() if not _name_of(each).startswith(_ADAPTERS)]
    return (
        (kind(node) in MAPS and bool(own))
        or any(
            op.op.startswith(("MapDataset", "ParallelMapDataset"))
            for function in own
            for op in operations(function.function)
        )
        or any(map(has_map, node._inputs()))
    )


def has_same_structure(node: Any, other: Any) -> bool:
    """Whether the elements of two maps have the same structure and dtypes."""
    specs, others = node.element_spec, other.element_spec
    try:
        tf.nest.assert_same_structure(specs, others)
    except (TypeError, ValueError):
        return False
    return all(
        type(spec) is type(same) and getattr(spec, "dtype", None) == getattr(same, "dtype", None)
        for spec, same in zip(tf.nest.flatten(specs), tf.nest.flatten(others), strict=True)
    )


def weighs_classes(node: Any) -> bool:
    """Whether a map over batches is the one by which Keras applies `class_weight`, row by row."""
    name = _name_of(node._map_func)
    return name.startswith(_ADAPTERS) and "class_weight" in name


def _name_of(function: Any) -> str:
    """The module and the name of a node's Python function."""
    python = inspect.unwrap(function._func)
    return f"{getattr(python, '__module__', '')}.{getattr(python, '__qualname__', '')}"


def why_not_for_some(node: Any) -> str | None:
    """Says why a map must run for all rows, or none; `None` if it may run for some of them.

    Args:
      node: a map.
    """
    function = node._map_func.function
    if not hasattr(function, "graph"):
        return "map_with_legacy_function has no function that can be called again: use map"
    if kind(node) == "_ParallelMapDataset":
        return None  # which row gets which draw is open in one process, too
    stateful = sorted({op.op for op in operations(function) if depends_on_calls(op.op)})
    if stateful:
        return (
            f"a sequential map runs {', '.join(stateful)}, so that each row has the result of a "
            "call before: use tf.random.stateless_* with a number of the row, or "
            "num_parallel_calls"
        )
    names = sorted(
        name
        for op in operations(function)
        if op.op.startswith(PYTHON)
        for name in _changing_names(script_ops._py_funcs.get(op.attr["token"].s.decode()))
    )
    if names:
        return (
            f"a sequential map runs a Python function that uses or sets {names[0]!r}, so that the "
            "result of a row may depend on the calls before: use tf.random.stateless_* with a "
            "number of the row, or num_parallel_calls"
        )
    return None


def operations(function: Any) -> Iterator[NodeDef]:
    """The ops of a traced function, and of the functions that it calls."""
    definition = function.graph.as_graph_def()
    for body in [definition.node, *(each.node_def for each in definition.library.function)]:
        yield from body


def depends_on_calls(op: str) -> bool:
    """Whether the result of an op depends on the calls before; not for an op that calls Python.

    Args:
      op: its type, such as "RandomUniform".
    """
    about = op_def_registry.get(op)
    # The name of a function is none of an op; its body is among the operations.
    return about is not None and about.is_stateful and not op.startswith(_SAME_AGAIN)


def _changing_names(function: Any) -> Iterator[str]:
    """The names in the code of a Python function that tell of random numbers or of a state."""
    function = getattr(function, "_func", function)  # of tf.py_function
    codes = [getattr(inspect.unwrap(function), "__code__", None)]
    while codes:
        code = codes.pop()
        if code is None:
            continue
        yield from filter(_CHANGING.search, (*code.co_names, *code.co_freevars))
        for step in dis.get_instructions(code):
            if step.opname == "STORE_GLOBAL" or (
                step.opname == "STORE_DEREF" and step.argval in code.co_freevars
            ):
                yield step.argval
        codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]
