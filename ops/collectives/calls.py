"""What the Python faces of all collectives share: whose ranks, which key, which deadline."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tfdist.ops.collectives import collective_keys
from tfdist.ops.collectives.communicator import Communicator

DEFAULT_TIMEOUT = 600.0


def resolve(communicator: Communicator | None, asked: str) -> Communicator:
    """Returns the communicator that a call means; None means this process's job.

    Args:
      communicator: what the caller passed.
      asked: the call, for messages.

    Raises:
      TypeError: it is not a communicator.
      tfdist.errors.NotInitializedError: None, and this process belongs to no job.
    """
    if isinstance(communicator, Communicator):
        return communicator
    if communicator is not None:
        raise TypeError(
            f"{asked}: expected a tfdist.ops.Communicator or None for the ranks, received "
            f"{communicator!r}"
        )
    from tfdist.job import process  # imports this package

    return process.communicator(asked)


def attributes(communicator: Communicator, label: str, timeout: float | None) -> dict[str, Any]:
    """The attributes that every collective op has."""
    return {
        "communicator": communicator.handle,
        "key": collective_keys.next_key(communicator.handle),
        "label": label,
        "timeout_seconds": DEFAULT_TIMEOUT if timeout is None else timeout,
    }


def as_list(tensors: Any) -> list[tf.Tensor]:
    """Returns one tensor or several as a list of tensors."""
    many = tensors if isinstance(tensors, list | tuple) else [tensors]
    return [tf.convert_to_tensor(tensor) for tensor in many]


def like(tensors: Any, results: list[Any]) -> Any:
    """Returns the results as a list if `tensors` were several, else the only one."""
    return results if isinstance(tensors, list | tuple) else results[0]


def group_outputs(outputs: Iterable[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the outputs of a collective, in a graph as those of one op that hands them on.

    TensorFlow gives each op that waits for an asynchronous one to its thread pool, one by one: a
    hundred optimizer updates or results of a function would mean a hundred wake-ups. What waits for
    this op runs on after it at once.
    """
    outputs = list(outputs)
    if len(outputs) < 2 or tf.executing_eagerly():
        return outputs
    return list(tf.raw_ops.IdentityN(input=outputs))


def by_dtype(values: list[tf.Tensor]) -> list[list[int]]:
    """Returns the positions of each dtype's tensors, which travel together."""
    positions: dict[tf.DType, list[int]] = {}
    for i, value in enumerate(values):
        positions.setdefault(value.dtype, []).append(i)
    return list(positions.values())


def reduced_by_dtype(
    values: list[tf.Tensor], reduce: Callable[[list[tf.Tensor]], Iterable[tf.Tensor]]
) -> list[tf.Tensor]:
    """Returns what `reduce` makes of the values, those of one dtype at a time."""
    results: dict[int, tf.Tensor] = {}
    for positions in by_dtype(values):
        reduced = group_outputs(reduce([values[i] for i in positions]))
        results.update(zip(positions, reduced, strict=True))
    return [results[i] for i in range(len(values))]
