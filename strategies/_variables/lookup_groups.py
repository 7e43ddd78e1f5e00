"""Batches the lookups of a step that do not depend on each other.

Each layer looks up its own rows. The lookups of one traced step form a group with levels: a lookup
whose ids depend on the rows of another lookup is one level above it. The lookups of a level wait
for each other and go to the servers in one message.
"""

from __future__ import annotations

import collections
import itertools
import weakref
from collections.abc import Sequence

import tensorflow as tf

# Ops that only read a resource are ordered after its writers, not after each other, so lookups of
# one table do not wait for each other. The function is not public.
from tfdist.internals.tensorflow import auto_control_deps_utils
from tfdist.ops.ps.client import ParameterClient
from tfdist.ops.ps.variable_handles import TableHandle
from tfdist.strategies._variables.graphs import current_graph

auto_control_deps_utils.register_read_only_resource_op("TfdistPsLookup")

_KEYS = itertools.count(1)


class LookupGroups:
    """Looks up rows; while a step is traced, in a group.

    Args:
      client: the connections to the servers.
    """

    def __init__(self, client: ParameterClient) -> None:
        self._client = client
        # By graph, not by thread: a strategy may run its replicas in separate threads.
        self._groups: weakref.WeakKeyDictionary[tf.Graph, _Group] = weakref.WeakKeyDictionary()

    def begin(self) -> None:
        """Begins a group if a graph is tracing a step."""
        graph = current_graph()
        if graph is not None and hasattr(graph, "capture"):
            self._groups[graph] = _Group(graph)

    def cut(self) -> None:
        """Ends the group and begins another: later lookups may depend on earlier ops."""
        if self._group is not None:
            self.end()
            self.begin()

    def end(self) -> None:
        """Ends the group: the step, or this part of it, has been traced."""
        group = self._group
        if group is None:
            return
        del self._groups[current_graph()]
        for level, size in group.sizes.items():
            self._client.tables.set_lookup_group(group.key, level, size)

    def lookup(
        self, tables: Sequence[TableHandle], ids: Sequence[tf.Tensor], training: bool
    ) -> list[tf.Tensor]:
        """As `ParameterClient.lookup`."""
        # There is no group in a branch or a loop's body: its lookups may not run in each step.
        group = self._group
        if group is None:
            return self._client.tables.lookup(tables, ids, training)
        depth = group.depth(tables, ids)
        level = 2 * depth + int(training)
        rows = self._client.tables.lookup(tables, ids, training, (group.key, level))
        group.add(rows[0].op, depth, level)
        return rows

    @property
    def _group(self) -> _Group | None:
        graph = current_graph()
        return None if graph is None else self._groups.get(graph)


class _Group:
    """The lookups of one trace of a step."""

    def __init__(self, graph: tf.Graph) -> None:
        self.key = next(_KEYS)
        self.sizes: collections.Counter[int] = collections.Counter()
        self._reference = weakref.ref(graph)
        self._above: dict[str, int] = {}  # by lookup op, the depth of ops that wait for it
        self._first = 0  # the number of ops before the first lookup

    @property
    def _graph(self) -> tf.Graph:
        return self._reference()

    def depth(self, tables: Sequence[TableHandle], ids: Sequence[tf.Tensor]) -> int:
        """Returns the length of the longest chain of lookups that a new lookup has to wait for."""
        if not self.sizes:
            self._first = len(self._graph.get_operations())
            return 0
        late = {op.name for op in self._graph.get_operations()[self._first :]}
        highest = max(self._above.values(), default=0)
        if any(_is_written(self._graph.capture(table.handle), late) for table in tables):
            return highest
        here = tf.no_op()  # gets the control inputs that the lookup would get
        return max(self._depth_of(op, late) for op in [here, *(self._op(each) for each in ids)])

    def add(self, op: tf.Operation, depth: int, level: int) -> None:
        """Adds a lookup op to a level."""
        self._above[op.name] = depth + 1
        self.sizes[level] += 1

    def _op(self, tensor: tf.Tensor) -> tf.Operation:
        return self._graph.capture(tensor).op

    def _depth_of(self, op: tf.Operation, late: set[str]) -> int:
        depth = 0
        seen, waiting = set(), [op]
        while waiting:
            op = waiting.pop()
            # Ops that were there before the first lookup do not wait for one.
            if op.name not in late or op.name in seen:
                continue
            seen.add(op.name)
            if op.name in self._above:
                depth = max(depth, self._above[op.name])
            elif _is_ordered(op, late):
                return max(self._above.values())
            else:
                waiting += [tensor.op for tensor in op.inputs]
                waiting += op.control_inputs
        return depth


def _is_ordered(op: tf.Operation, late: set[str]) -> bool:
    """Whether a function may run `op` only after ops that are not among its inputs."""
    if not op.op_def.is_stateful:
        return False
    resources = [tensor for tensor in op.inputs if tensor.dtype == tf.resource]
    if not resources or op.type not in auto_control_deps_utils.RESOURCE_READ_OPS:
        return True
    return any(_is_written(resource, late) for resource in resources)


def _is_written(resource: tf.Tensor, late: set[str]) -> bool:
    return any(
        op.name in late and op.type not in auto_control_deps_utils.RESOURCE_READ_OPS
        for op in resource.consumers()
    )
