"""The outermost layer call of a replica, in which a batch without rows has a substitute row.

A model is a layer. Within its call no layer, and no function of the user's own, has an empty batch;
after it outputs have no rows again, so losses and metrics do not count the substitute. The gradient
of those outputs is exactly 0.

Side effects of a call are undone by the code that asks `substitution`: losses of `add_loss`,
assignments, and rows of embedding tables.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable

import tensorflow as tf

from tfdist._types import KerasVariable, Nested
from tfdist.keras.substitute_rows import padding
from tfdist.keras.workers import replica_with_peers

_thread = threading.local()


@dataclasses.dataclass(eq=False)
class Substitution:
    """One outermost layer call of a replica.

    Attributes:
      is_empty: bool[], whether the batch has no rows and its row is a substitute; `None` if the
        batch is sure to have rows.
    """

    is_empty: tf.Tensor | None


def substitution() -> Substitution | None:
    """The current layer call, if its batch may be a substitute."""
    current = getattr(_thread, "call", None)
    return None if current is None or current.is_empty is None else current


def substituted(call: Callable[..., Nested], args: tuple, kwargs: dict[str, Nested]) -> Nested:
    """Calls a layer; in the outermost call a batch without rows gets a substitute row.

    Args:
      call: takes the arguments.
      args: tensors in any structure, and others.
      kwargs: likewise.

    Returns:
      the outputs of `call`, without the substitute row.
    """
    if getattr(_thread, "call", None) is not None or replica_with_peers() is None:
        return call(*args, **kwargs)
    leaves = tf.nest.flatten((args, kwargs))
    indices = [index for index, leaf in enumerate(leaves) if padding.can_be_empty(leaf)]
    if not indices:
        return _call_within(Substitution(None), call, args, kwargs)
    found = [leaves[index] for index in indices]
    is_empty = padding.has_no_rows(found[0])
    if tf.executing_eagerly() and not is_empty:
        return _call_within(Substitution(None), call, args, kwargs)
    for index, leaf in zip(indices, padding.with_substitutes(found, is_empty), strict=True):
        leaves[index] = leaf
    args, kwargs = tf.nest.pack_sequence_as((args, kwargs), leaves)
    outputs = _call_within(Substitution(is_empty), call, args, kwargs)
    is_static = tf.get_static_value(is_empty) is not None
    return tf.nest.map_structure(
        lambda output: padding.without_substitutes(output, is_empty, is_static), outputs
    )


def _call_within(
    current: Substitution, call: Callable[..., Nested], args: tuple, kwargs: dict[str, Nested]
) -> Nested:
    _thread.call = current
    try:
        return call(*args, **kwargs)
    finally:
        _thread.call = None


def no_value(value: tf.Tensor) -> tf.Tensor:
    """Returns a loss, or 0 in its place for a substitute row."""
    current = substitution()
    if current is None:
        return value
    return tf.where(current.is_empty, tf.zeros_like(value), value)


def unchanged(variable: KerasVariable, value: tf.Tensor) -> tf.Tensor:
    """Returns a variable's new value, or its present one if the new one is of a substitute row.

    Args:
      variable: a variable of Keras.
      value: a tensor.
    """
    current = substitution()
    if current is None:
        return value
    return tf.where(current.is_empty, tf.cast(tf.convert_to_tensor(variable), value.dtype), value)


def own_rows(value: tf.Tensor | None) -> tf.Tensor | None:
    """Returns a tensor of the batch without substitute rows; `None` remains `None`."""
    current = substitution()
    if value is None or current is None:
        return value
    return padding.rows_of_batch(value, current.is_empty)


def looked_up(look_up: Callable[[tf.Tensor], tf.Tensor], ids: tf.Tensor) -> tf.Tensor:
    """Looks up rows of an embedding table, but none of a substitute row's ids.

    Args:
      look_up: takes ids, and returns a row for each one.
      ids: of at least one dimension.
    """
    current = substitution()
    if current is None or not ids.shape.rank:
        return look_up(ids)
    rows = look_up(padding.rows_of_batch(ids, current.is_empty))
    result = tf.cond(
        current.is_empty,
        lambda: tf.fill(
            tf.concat([tf.shape(ids), tf.shape(rows)[ids.shape.rank :]], 0),
            tf.constant(0.5, rows.dtype),
        ),
        lambda: rows,
    )
    return tf.ensure_shape(result, [*ids.shape, *rows.shape[ids.shape.rank :]])
