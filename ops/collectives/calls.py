"""Shared parts of all collectives: communicator, key, deadline, lists of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import tensorflow as tf

from tfdist import _providers
from tfdist._types import Nested, TensorsLike
from tfdist.ops.collectives import collective_keys
from tfdist.ops.collectives.alone import expect_all
from tfdist.ops.collectives.communicator import Communicator

DEFAULT_TIMEOUT = 600.0


def resolve(communicator: Communicator | None, api_name: str) -> Communicator:
    """Returns the communicator of a call, which is the job's if the caller passed `None`.

    Args:
      communicator: the argument of the call.
      api_name: the public function that was called, for messages.

    Raises:
      TypeError: the argument is not a communicator.
      tfdist.errors.NotInitializedError: the argument is `None`, and this process has no job.
    """
    if isinstance(communicator, Communicator):
        return communicator
    if communicator is not None:
        raise TypeError(
            f"{api_name}: expected a tfdist.ops.Communicator or None for the ranks, received "
            f"{communicator!r}"
        )
    return _providers.provider("default_communicator")(api_name)


def attributes(communicator: Communicator, label: str, timeout: float | None) -> dict[str, object]:
    """Returns the attributes that every collective op has.

    Raises:
      ValueError: this thread works while the other ranks do something else.
    """
    # Before the key, which the other ranks do not use up.
    expect_all(communicator, f"the collective {label!r}")
    return {
        "communicator": communicator.handle,
        "key": collective_keys.next_key(communicator.handle),
        "label": label,
        "timeout_seconds": DEFAULT_TIMEOUT if timeout is None else timeout,
    }


def as_list(tensors: TensorsLike) -> list[tf.Tensor]:
    """Returns one tensor or several as a list of tensors."""
    many = tensors if isinstance(tensors, list | tuple) else [tensors]
    return [tf.convert_to_tensor(tensor) for tensor in many]


def like(tensors: TensorsLike, results: list[tf.Tensor]) -> Nested:
    """Returns the results as a list if `tensors` were several, else the only one."""
    return results if isinstance(tensors, list | tuple) else results[0]


def group_outputs(outputs: Iterable[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the outputs of a collective; in a graph they become outputs of one identity op.

    TensorFlow schedules each op that waits for an asynchronous op on its thread pool, one by one: a
    hundred optimizer updates, or results of a function, would mean a hundred wake-ups. An op that
    waits for the identity op runs directly after it.
    """
    outputs = list(outputs)
    if len(outputs) < 2 or tf.executing_eagerly():
        return outputs
    return list(tf.raw_ops.IdentityN(input=outputs))


def by_dtype(values: list[tf.Tensor]) -> list[list[int]]:
    """Returns the positions of the tensors of each dtype; one collective carries one dtype."""
    positions: dict[tf.DType, list[int]] = {}
    for i, value in enumerate(values):
        positions.setdefault(value.dtype, []).append(i)
    return list(positions.values())


def reduced_by_dtype(
    values: list[tf.Tensor], reduce: Callable[[list[tf.Tensor]], Iterable[tf.Tensor]]
) -> list[tf.Tensor]:
    """Applies `reduce` to the tensors of each dtype; returns the results in the given order."""
    results: dict[int, tf.Tensor] = {}
    for positions in by_dtype(values):
        reduced = group_outputs(reduce([values[i] for i in positions]))
        results.update(zip(positions, reduced, strict=True))
    return [results[i] for i in range(len(values))]
