"""Gradients of the collectives.

The loss is the sum of what every rank computes. A rank's tensor reaches the loss on other ranks
through a collective, so that its gradient comes back through the collective that goes the other
way:

    all_reduce                  all_reduce
    reduce to a rank            broadcast from it
    broadcast from a rank       reduce to it
    all_gather                  reduce_scatter, by the rows that each rank gave
    reduce_scatter              all_gather
    gather on a rank            scatter from it, by the rows that each rank gave
    scatter from a rank         gather on it
    all_to_all                  all_to_all, by the rows that came

Each is a collective of its own, in which every rank must take part: all have to differentiate
through it, also where the result counts for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdist.ops import library, tags
from tfdist.ops.calls import by_dtype
from tfdist.ops.communicator import Communicator


@tf.RegisterGradient("TfdistAllReduce")
def _all_reduce(op, *grads):
    reduced = library.graph_ops().tfdist_all_reduce(
        inputs=_filled(op, grads), reduce_op=_linear(op, "all_reduce"), **_attributes(op)
    )
    return list(reduced)


@tf.RegisterGradient("TfdistReduce")
def _reduce(op, *grads):
    mean = _linear(op, "reduce") == "mean"
    sent = library.graph_ops().tfdist_broadcast(
        inputs=_filled(op, grads), root=op.get_attr("root"), **_attributes(op)
    )
    return _divided(op, sent) if mean else list(sent)


@tf.RegisterGradient("TfdistReduceScatter")
def _reduce_scatter(op, *grads):
    mean = _linear(op, "reduce_scatter") == "mean"
    gathered, _ = library.graph_ops().tfdist_all_gather(
        inputs=_filled(op, grads), **_attributes(op)
    )
    return [*(_divided(op, gathered) if mean else gathered), None]


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
        # The gather must run here too, although nobody needs what comes of it.
        with tf.control_dependencies(gathered):
            return [tf.zeros_like(op.inputs[i]) for i in positions]

    return [*_by_dtype(op, grads, back), None]


@tf.RegisterGradient("TfdistAllToAll")
def _all_to_all(op, *grads):
    equal = op.inputs[-1].shape.num_elements() == 0

    def back(positions, gradients):
        rows = op.inputs[-1] if equal else tf.gather(op.outputs[-1], positions, axis=1)
        exchanged, _ = library.graph_ops().tfdist_all_to_all(
            inputs=gradients, rows=rows, **_attributes(op)
        )
        return exchanged

    return [*_by_dtype(op, grads[:-1], back), None]


for _name in ("TfdistBarrier", "TfdistJoin", "TfdistPackStrings", "TfdistUnpackStrings"):
    tf.no_gradient(_name)


def _communicator(op) -> Communicator:
    return Communicator.of(op.get_attr("communicator"))


def _attributes(op) -> dict:
    handle = op.get_attr("communicator")
    return {
        "communicator": handle,
        "key": tags.next_key(handle),
        "label": f"gradient of {tf.compat.as_str(op.get_attr('label'))}",
        "timeout_seconds": op.get_attr("timeout_seconds"),
    }


def _linear(op, name: str) -> str:
    reduce_op = tf.compat.as_str(op.get_attr("reduce_op"))
    if reduce_op not in ("sum", "mean"):
        raise LookupError(
            f'{name} \'{tf.compat.as_str(op.get_attr("label"))}\': expected "sum" or "mean", '
            f"which have a gradient, received {reduce_op!r}, which has none here"
        )
    return reduce_op


def _filled(op, grads: Sequence) -> list[tf.Tensor]:
    """The gradients as dense tensors, zeros where TensorFlow has none."""
    return [
        tf.zeros_like(output) if grad is None else tf.convert_to_tensor(grad)
        for output, grad in zip(op.outputs, grads, strict=False)
    ]


def _divided(op, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    size = _communicator(op).size
    return [gradient / tf.cast(size, gradient.dtype) for gradient in gradients]


def _by_dtype(
    op, grads: Sequence, back: Callable[[list[int], list[tf.Tensor]], Sequence[tf.Tensor]]
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
