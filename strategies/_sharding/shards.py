"""Vectors that are cut into one part for each worker, and the collectives that cut and join them.

    gradients    reduce_scatter    part of the sums
                                        |   the optimizer, with the slots of that part
    variables    all_gather        part of the new values

Each variable is cut on its own, as a vector: the parts of two workers differ by one element at
most, and names, norms and files of single variables keep their meaning. Both collectives together
send the bytes of one all-reduce.

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import tensorflow as tf

from tfdist import ops
from tfdist._types import Gradient, Nested
from tfdist.config.sharding import Sharding
from tfdist.observe.metrics import counters
from tfdist.ops.collectives.fused import buckets
from tfdist.ops.collectives.independent import independent_collectives
from tfdist.ops.collectives.naming import name_of
from tfdist.ops.collectives.parts import all_gather_into, all_gather_parts
from tfdist.strategies._sharding.part_variable import PartVariable
from tfdist.strategies._sharding.units import Trace, Units


class Shards:
    """The parts of all workers.

    Args:
      sharding: the division.
      communicator: the workers.
      bytes_per_pack: a collective takes variables until it has this number of bytes.
      timeout: seconds, of each collective; as in `ops.all_reduce`.
    """

    def __init__(
        self,
        sharding: Sharding,
        communicator: ops.Communicator,
        bytes_per_pack: int,
        timeout: float | None,
    ) -> None:
        self.sharding = sharding
        self.units = Units(sharding.units) if sharding.stage == 3 else None
        self._communicator = communicator
        self._bytes_per_pack = bytes_per_pack
        self._timeout = timeout

    def own(self, elements: int) -> slice:
        """This worker's part of a vector, as `ops.reduce_scatter` cuts it."""
        rank, size = self._communicator.rank, self._communicator.size
        fewest, more = divmod(elements, size)
        begin = rank * fewest + min(rank, more)
        return slice(begin, begin + fewest + (rank < more))

    def buckets(self, variables: Sequence[tf.Variable]) -> list[list[int]]:
        """Returns the positions of the variables whose parts travel together."""
        return buckets(variables, self._bytes_per_pack)

    def reduce_scatter(self, gradients: Sequence[Gradient]) -> list[tf.Tensor]:
        """Returns this worker's part of each gradient's sum over all workers, as vectors."""
        dense = [_dense(gradient) for gradient in gradients]
        parts: list = [None] * len(dense)
        for bucket in buckets(dense, self._bytes_per_pack):
            label = name_of([dense[i] for i in bucket])
            flat = [tf.reshape(dense[i], [-1]) for i in bucket]
            with independent_collectives():
                reduced = ops.reduce_scatter(
                    flat, self._communicator, label=label, timeout=self._timeout
                )
            for i, part in zip(bucket, reduced, strict=True):
                parts[i] = part
        return parts

    def part_of(self, variable: tf.Variable, after: tf.Tensor) -> tf.Tensor:
        """Reads this worker's part of a variable, once another tensor exists: memory is short."""
        with tf.control_dependencies([after]):
            if isinstance(variable, PartVariable):
                return variable.part()
            value = tf.reshape(variable.read_value(), [-1])
        return value[self.own(variable.shape.num_elements())]

    def assign(self, variables: Sequence[tf.Variable], parts: Sequence[tf.Tensor]) -> None:
        """Assigns variables of one dtype, of which each worker gives its part."""
        counters.note_update()
        names = [variable.name.partition(":")[0] for variable in variables]
        more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
        all_gather_into(
            variables,
            parts,
            self._communicator,
            label=f"new values of {names[0]}{more}",
            timeout=self._timeout,
        )

    def calling_layer(self, layer: str, inputs: Nested) -> contextlib.AbstractContextManager[None]:
        """Within it a layer is called; where its input is computed tells when to gather others."""
        graph = tf.compat.v1.get_default_graph()
        tensors = (t for t in tf.nest.flatten(inputs) if isinstance(t, tf.Tensor))
        first = next((t for t in tensors if tf.is_symbolic_tensor(t) and t.graph is graph), None)
        return contextlib.nullcontext() if first is None else Trace.of(graph).calling(layer, first)

    def gather_again(self) -> None:
        """Gathers variables again for the gradient functions of the present graph."""
        if not tf.executing_eagerly():
            Trace.of(tf.compat.v1.get_default_graph()).gather_again(self)

    def sums(self, values: tf.Tensor, label: str) -> tf.Tensor:
        """Sums values over the workers."""
        with independent_collectives():
            return ops.all_reduce(values, self._communicator, label=label, timeout=self._timeout)

    def gather(
        self, parts: Sequence[tf.Tensor], shapes: Sequence[tf.TensorShape], label: str
    ) -> list[tf.Tensor]:
        """Returns tensors of one dtype, of which each worker gives its part."""
        with independent_collectives():
            return all_gather_parts(
                parts, shapes, self._communicator, label=label, timeout=self._timeout
            )


def _dense(gradient: Gradient) -> tf.Tensor:
    """A gradient as a tensor; rows of one id are added."""
    if not isinstance(gradient, tf.IndexedSlices):
        return tf.convert_to_tensor(gradient)
    rows = gradient.dense_shape[0]
    return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, rows)
