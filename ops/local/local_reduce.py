"""The sum of the tensors of several replicas in one process."""

from collections.abc import Sequence

import tensorflow as tf

from tfdist.ops import library
from tfdist.ops.local.copy_to_devices import as_tensors, copy_to_devices

DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)


def local_reduce(replicas: Sequence[Sequence], reduce_op: str = "sum") -> list[tf.Tensor]:
    """Sums or averages the tensors of replicas in this process, a whole list in one fused pass.

    Each byte of the inputs is read once and each byte of the result is written once; tensors are
    not packed, and partial sums are not written to memory. The result takes replica 0's memory if
    no other op needs it. The op runs on the current device, which must be a CPU.

    Args:
      replicas: one list of tensors per replica, at least one replica. All lists have the same
        number of tensors, with the same shapes and dtypes: float16, bfloat16, float32, float64,
        int32 or int64. Tensors of one dtype are reduced together. The tensors of each replica may
        be on a device of their own.
      reduce_op: "sum" or "mean". The mean of integers truncates toward zero, as `tf.reduce_mean`
        does.

    Returns:
      A list like one replica's: tensor i is the sum or mean of the replicas' tensors i.

    Raises:
      TypeError: a dtype cannot be reduced, or differs from replica 0's.
      ValueError: a replica has more or fewer tensors than replica 0, or there is no replica.
      tf.errors.InvalidArgumentError: shapes differ; names the replica, the tensor and both shapes.
        A ValueError instead if TensorFlow knows the shapes while it builds the graph.

    Example:
      >>> local_reduce([[tf.constant([1.0, 2.0])], [tf.constant([3.0, 4.0])]])[0].numpy()
      array([4., 6.], dtype=float32)
    """
    values = [as_tensors(replica) for replica in replicas]
    types = _common_types(values)
    local = [copy_to_devices(replica, [""])[0] for replica in values]
    results = [None] * len(types)
    for dtype in dict.fromkeys(types):
        positions = [i for i, t in enumerate(types) if t == dtype]
        reduced = library.graph_ops().tfdist_local_reduce(
            inputs=[replica[i] for replica in local for i in positions],
            N=len(positions),
            reduce_op=reduce_op,
            positions=positions,
        )
        for i, value in zip(positions, reduced, strict=True):
            results[i] = value
    return results


def _common_types(replicas: list[list[tf.Tensor]]) -> list[tf.DType]:
    """Returns the tensors' dtypes after checking that they can be reduced and replicas agree."""
    if not replicas:
        raise ValueError(
            "local_reduce: expected the tensors of at least one replica, received none"
        )
    types = [value.dtype for value in replicas[0]]
    for dtype in dict.fromkeys(types):
        if dtype not in DTYPES:
            raise TypeError(
                f"local_reduce: tensor {types.index(dtype)}: expected one of "
                f"{', '.join(known.name for known in DTYPES)}, received {dtype.name}"
            )
    for r, replica in enumerate(replicas):
        if len(replica) != len(types):
            raise ValueError(
                f"local_reduce: replica {r}: expected {len(types)} tensors as on replica 0, "
                f"received {len(replica)}"
            )
        received = [value.dtype for value in replica]
        if received != types:
            i = next(i for i, dtype in enumerate(types) if received[i] != dtype)
            raise TypeError(
                f"local_reduce: replica {r}, tensor {i}: expected {types[i].name} as on replica "
                f"0, received {received[i].name}"
            )
    return types
