"""Gradients of the collectives.

The loss is the sum of the losses of all ranks. A rank's tensor reaches the losses of other ranks
through a collective, so its gradient returns through the transposed collective:

    collective                  its gradient
    all_reduce                  all_reduce
    all_reduce of rows          all_reduce of the reduced rows, from which each rank selects its own
    reduce to a rank            broadcast from it
    broadcast from a rank       reduce to it
    all_gather                  reduce_scatter, by the numbers of rows that the ranks contributed
    all_gather_parts            reduce_scatter
    reduce_scatter              all_gather
    gather on a rank            scatter from it, by the numbers of rows that the ranks contributed
    scatter from a rank         gather on it
    all_to_all                  all_to_all, by the numbers of received rows

The gradient of a mean is divided by the number of ranks; for minimum, maximum and product see
`_selected`.

Each gradient is a collective of its own, in which every rank must take part: all ranks have to
differentiate through it, even a rank that does not use the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdist.ops import library
from tfdist.ops.collectives import collective_keys
from tfdist.ops.collectives.calls import by_dtype
from tfdist.ops.collectives.communicator import Communicator
from tfdist.ops.collectives.independent import independent_collectives
from tfdist.ops.collectives.world import world


@tf.RegisterGradient("TfdistAllReduce")
def _all_reduce(op, *grads):
    reduce_op = _reduce_op(op)
    linear = reduce_op in ("sum", "mean")
    upstream = _all_reduced(op, _filled(op, grads), reduce_op if linear else "sum")
    return list(upstream) if linear else _selected(op, reduce_op, upstream, op.outputs)


@tf.RegisterGradient("TfdistAllReduceBlock")
def _all_reduce_block(op, *grads):
    return [*_all_reduce(op, *grads), None]


@tf.RegisterGradient("TfdistAllReduceRows")
def _all_reduce_rows(op, _, grad):
    """All ranks have the same rows in the same order, so their gradients add up as they are."""
    own, reduced_ids = op.inputs[0], op.outputs[0]
    if not op.outputs[1].dtype.is_floating:
        return [None, None, None]
    filled = tf.zeros_like(op.outputs[1]) if grad is None else tf.convert_to_tensor(grad)
    (upstream,) = _all_reduced(op, [filled], _reduce_op(op))
    order = tf.argsort(reduced_ids)
    # Every own id is among the reduced ids. tf.searchsorted would refuse an empty list of ids.
    positions = tf.raw_ops.LowerBound(
        sorted_inputs=tf.gather(reduced_ids, order)[tf.newaxis], values=own[tf.newaxis]
    )[0]
    return [None, tf.gather(upstream, tf.gather(order, positions)), None]


@tf.RegisterGradient("TfdistReduce")
def _reduce(op, *grads):
    def from_root(tensors):
        return library.graph_ops().tfdist_broadcast(
            inputs=tensors, root=op.get_attr("root"), **_attributes(op)
        )

    upstream = from_root(_filled(op, grads))
    return _shared(op, upstream, from_root)


@tf.RegisterGradient("TfdistReduceScatter")
def _reduce_scatter(op, *grads):
    def from_all(tensors):
        gathered, _ = library.graph_ops().tfdist_all_gather(inputs=tensors, **_attributes(op))
        return gathered

    upstream = from_all(_filled(op, grads))
    return [*_shared(op, upstream, from_all), None]


@tf.RegisterGradient("TfdistBroadcast")
def _broadcast(op, *grads):
    def back(positions, gradients):
        return library.graph_ops().tfdist_reduce(
            inputs=gradients, root=op.get_attr("root"), reduce_op="sum", **_attributes(op)
        )

    return _by_dtype(op, grads, back)


@tf.RegisterGradient("TfdistAllGather")
def _all_gather(op, *grads):
    def back(positions, gradients):
        return library.graph_ops().tfdist_reduce_scatter(
            inputs=gradients,
            rows=tf.gather(op.outputs[-1], positions, axis=1),
            reduce_op="sum",
            **_attributes(op),
        )

    return _by_dtype(op, grads[:-1], back)


@tf.RegisterGradient("TfdistAllGatherParts")
def _all_gather_parts(op, *grads):
    # Not `_filled`, which would keep the gathered tensors until then.
    flat = [
        tf.zeros([output.shape.num_elements()], output.dtype)
        if gradient is None
        else tf.reshape(gradient, [-1])
        for output, gradient in zip(op.outputs, grads, strict=True)
    ]
    with independent_collectives():
        parts = library.graph_ops().tfdist_reduce_scatter(
            inputs=flat, rows=tf.zeros([0, 0], tf.int64), reduce_op="sum", **_attributes(op)
        )
    for part, own in zip(parts, op.inputs, strict=True):
        part.set_shape(own.shape)
    return parts


@tf.RegisterGradient("TfdistGather")
def _gather(op, *grads):
    def back(positions, gradients):
        return library.graph_ops().tfdist_scatter(
            inputs=gradients,
            rows=tf.gather(op.outputs[-1], positions, axis=1),
            root=op.get_attr("root"),
            **_attributes(op),
        )

    return _by_dtype(op, grads[:-1], back)


@tf.RegisterGradient("TfdistScatter")
def _scatter(op, *grads):
    root = op.get_attr("root")

    def back(positions, gradients):
        gathered, _ = library.graph_ops().tfdist_gather(
            inputs=gradients, root=root, **_attributes(op)
        )
        if _communicator(op).rank == root:
            return gathered
        # The gather must run here too, although its result is not used.
        with tf.control_dependencies(gathered):
            return [tf.zeros_like(op.inputs[i]) for i in positions]

    return [*_by_dtype(op, grads, back), None]


@tf.RegisterGradient("TfdistAllToAll")
def _all_to_all(op, *grads):
    def back(positions, gradients):
        exchanged, _ = library.graph_ops().tfdist_all_to_all(
            inputs=gradients,
            rows=tf.gather(op.outputs[-1], positions, axis=1),
            **_attributes(op),
        )
        return exchanged

    return [*_by_dtype(op, grads[:-1], back), None]


for _name in (
    "TfdistBarrier",
    "TfdistBucketSize",
    "TfdistJoin",
    "TfdistPackStrings",
    "TfdistUnpackStrings",
):
    tf.no_gradient(_name)


def _communicator(op: tf.Operation) -> Communicator:
    return Communicator.of(op.get_attr("communicator"))


def _attributes(op: tf.Operation) -> dict:
    handle = op.get_attr("communicator")
    return {
        "communicator": handle,
        "key": collective_keys.next_key(handle),
        "label": f"gradient of {tf.compat.as_str(op.get_attr('label'))}",
        "timeout_seconds": op.get_attr("timeout_seconds"),
    }


def _reduce_op(op: tf.Operation) -> str:
    return tf.compat.as_str(op.get_attr("reduce_op"))


def _all_reduced(
    op: tf.Operation, tensors: Sequence[tf.Tensor], reduce_op: str
) -> Sequence[tf.Tensor]:
    return library.graph_ops().tfdist_all_reduce(
        inputs=tensors, reduce_op=reduce_op, **_attributes(op)
    )


def _shared(op: tf.Operation, upstream: Sequence[tf.Tensor], spread: Callable) -> list[tf.Tensor]:
    """A rank's gradients of a reduction; `spread` sends the reduction's outputs to all ranks."""
    reduce_op = _reduce_op(op)
    if reduce_op == "sum":
        return list(upstream)
    if reduce_op == "mean":
        return _divided(op, upstream)
    outputs = list(op.outputs) if reduce_op == "product" else spread(list(op.outputs))
    return _selected(op, reduce_op, upstream, outputs)


def _selected(
    op: tf.Operation, reduce_op: str, upstream: Sequence[tf.Tensor], outputs: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """A rank's gradients of a minimum, maximum or product.

    Ranks with the same extreme value share its gradient, as in `tf.reduce_max`. The derivative of a
    product by one factor is the product of the others. If a factor is zero, that is not the whole
    product divided by this factor.
    """
    inputs = list(op.inputs[: len(upstream)])
    if reduce_op in ("min", "max"):
        same = [tf.cast(tf.equal(x, y), x.dtype) for x, y in zip(inputs, outputs, strict=True)]
        counts = _all_reduced(op, same, "sum")
        return [
            tf.math.divide_no_nan(gradient * here, count)
            for gradient, here, count in zip(upstream, same, counts, strict=True)
        ]
    zero = [tf.cast(tf.equal(x, 0), x.dtype) for x in inputs]
    rest = [tf.where(tf.equal(x, 0), tf.ones_like(x), x) for x in inputs]
    zeros = _all_reduced(op, zero, "sum")
    products = _all_reduced(op, rest, "product")
    return [
        gradient * tf.where(tf.equal(count, here), product / x, tf.zeros_like(x))
        for gradient, here, x, count, product in zip(
            upstream, zero, rest, zeros, products, strict=True
        )
    ]


def _filled(op: tf.Operation, grads: Sequence) -> list[tf.Tensor]:
    """The gradients as dense tensors, with zeros where TensorFlow has `None`."""
    return [
        tf.zeros_like(output) if grad is None else tf.convert_to_tensor(grad)
        for output, grad in zip(op.outputs, grads, strict=False)
    ]


def _divided(op: tf.Operation, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    _, size = world(_communicator(op))
    return [gradient / tf.cast(size, gradient.dtype) for gradient in gradients]


def _by_dtype(
    op: tf.Operation,
    grads: Sequence,
    back: Callable[[list[int], list[tf.Tensor]], Sequence[tf.Tensor]],
) -> list[tf.Tensor | None]:
    """Calls `back` for the tensors of each dtype that has gradients."""
    results: list[tf.Tensor | None] = [None] * len(grads)
    outputs = list(op.outputs[: len(grads)])
    for positions in by_dtype(outputs):
        if not (outputs[positions[0]].dtype.is_floating or outputs[positions[0]].dtype.is_complex):
            continue
        filled = _filled(op, grads)
        gradients = back(positions, [filled[i] for i in positions])
        for i, gradient in zip(positions, gradients, strict=True):
            results[i] = gradient
    return results
