"""The state of callbacks, which a newcomer of an elastic `fit` receives.

It consists of the attributes whose values a newcomer can take:

    numbers, arrays, lists, dicts, tuples, sets and deques of them    their values
    generators of random numbers, of Python, NumPy and Keras          their states
    variables of TensorFlow and Keras                                 their values
    objects with `get_state` and `set_state`                          what `get_state` returns
    `keras.ops.less` and `greater`, which Keras sets after an epoch   their names

A callback that has both methods itself is carried by them alone. All other attributes, such as
models, functions and open files, stay each worker's own. So do texts that have not changed since
`fit` began, since they may be paths on a worker's disk, and large data that `fit` was given.
"""

from __future__ import annotations

import collections
import logging
import random
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist._types import KerasCallback, KerasVariable, Nested
from tfdist.elastic.plain_values import decode, encode
from tfdist.errors import TfdistError

# The class of variables of which each replica has its own value.
from tfdist.internals.tensorflow import SyncOnReadVariable
from tfdist.keras.models import is_variable, tf_variable
from tfdist.keras.workers import is_on_servers, is_table

_log = logging.getLogger("tfdist.elastic")
_NUMBERS = (bool, int, float, type(None))
_KINDS = "biufcUSmM"  # of numpy.dtype.kind, as in plain_values
# A callback may hold averages of the weights, or the best ones. A value larger than the training's
# variables, and than this limit, is data: all members would wait while it is sent, and have it
# already.
_MAX_BYTES = 64 << 20
_MAX_DEPTH = 20
# Of `fit`, and not of the callback.
_NOT_STATE = {"model", "_model", "params", "validation_data"}
_WHOLE = "get_state()"
# The comparison of Keras 3's EarlyStopping and the like, which also flips the sign of `min_delta`.
_FUNCTIONS = {"less": keras.ops.less, "greater": keras.ops.greater}


class CallbackStates:
    """The states of the callbacks of one `fit`, which has called their `on_train_begin`.

    Args:
      callbacks: the callbacks.
      of_each_worker: types of callbacks without a state that others need.
      max_bytes: the size of the training's variables, in bytes.
    """

    def __init__(
        self, callbacks: Sequence[KerasCallback], of_each_worker: tuple[type, ...], max_bytes: int
    ) -> None:
        self._callbacks = [each for each in callbacks if not isinstance(each, of_each_worker)]
        self._max_bytes = max(2 * max_bytes, _MAX_BYTES)
        self._warned: set[str] = set()
        self._texts = {
            key: encode({"": value}, "") for key, value in self._carried() if _has_text(value)
        }

    def describe(self) -> bytes:
        """The present states."""
        values: list[dict[str, Nested]] = [{} for _ in self._callbacks]
        for (index, name), value in self._carried():
            at_begin = self._texts.get((index, name))
            if not _has_text(value) or at_begin != encode({"": value}, ""):
                values[index][name] = value
        return encode({"types": self._types(), "values": values}, "callbacks")

    def restore(self, content: bytes) -> None:
        """Takes the states of another member's callbacks.

        Lists, dicts and the like are changed in place: the script may hold them, too.

        Args:
          content: the result of its `describe`.

        Raises:
          CallbackStateError: a `set_state` has raised an error, which is the cause.
        """
        described = decode(content)
        own, theirs = self._types(), described["types"]
        if own != theirs:
            _log.warning(
                "expected the members' callbacks, %s, received %s: they begin as new ones. Give "
                "the same callbacks to all workers",
                theirs,
                own,
            )
            return
        for callback, values in zip(self._callbacks, described["values"], strict=True):
            for name, value in values.items():
                if name == _WHOLE:
                    _set_state(callback, value["state"])
                else:
                    _put(callback, name, value)

    def _types(self) -> list[str]:
        return [type(callback).__qualname__ for callback in self._callbacks]

    def _carried(self) -> Iterator[tuple[tuple[int, str], Nested]]:
        """The described value of each carried attribute, by callback and name."""
        for index, callback in enumerate(self._callbacks):
            for name, value in _attributes(callback):
                where = f"{type(callback).__qualname__}.{name}"
                try:
                    stands_for = _carried(value)
                except _NotPlain:
                    if _has_state(value):
                        self._warn(
                            f"{where}: expected get_state() to return numbers, texts, arrays of "
                            "NumPy, or lists, tuples and dicts of them"
                        )
                    continue
                size = _bytes(stands_for)
                if size <= self._max_bytes:
                    yield (index, name), stands_for
                else:
                    self._warn(
                        f"{where}: expected at most {self._max_bytes >> 20} MB, received "
                        f"{size >> 20} MB"
                    )

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            _log.warning("%s: a newcomer keeps its own", message)


class CallbackStateError(TfdistError):
    """A `set_state` of the script has raised an error, when it was given a member's state."""


class _NotPlain(Exception):
    """A value cannot be carried."""


def _attributes(callback: KerasCallback) -> list[tuple[str, object]]:
    if _has_state(callback):
        return [(_WHOLE, callback)]
    return [(name, value) for name, value in vars(callback).items() if name not in _NOT_STATE]


def _has_state(value: object) -> bool:
    methods = (getattr(type(value), name, None) for name in ("get_state", "set_state"))
    return all(map(callable, methods))


def _set_state(value: Any, state: object) -> None:
    try:
        value.set_state(state)
    except Exception as error:
        raise CallbackStateError(
            f"{type(value).__qualname__}.set_state: expected it to take what get_state of a "
            f"member's has returned, received {type(error).__name__}: {error}"
        ) from error


def _carried(value: Any) -> Nested:
    """Returns what stands for an attribute's value: itself, or a dict {kind: plain value}."""
    if isinstance(value, np.random.Generator):
        return {"generator": _plain(value.bit_generator.state)}
    if isinstance(value, random.Random):
        return {"random": _plain(value.getstate())}
    if isinstance(value, keras.random.SeedGenerator | tf.random.Generator):
        return {"seed": _array(value.state)}
    if is_variable(value) and _is_equal_on_all_replicas(tf_variable(value)):
        return {"variable": _array(value)}
    for name, function in _FUNCTIONS.items():
        if value is function:
            return {"function": name}
    if tf.is_tensor(value) and hasattr(value, "numpy"):
        return {"tensor": _array(value)}
    if _has_state(value):
        try:
            return {"state": _plain(value.get_state())}
        except TypeError as error:  # as a class whose methods are not of this kind
            raise _NotPlain from error
    if isinstance(value, collections.deque):
        return {"deque": [_plain(list(value)), value.maxlen]}
    if type(value) is set:
        return {"set": _plain(list(value))}
    if type(value) in (collections.OrderedDict, collections.defaultdict, collections.Counter):
        return {"mapping": _plain(dict(value))}
    return {"plain": _plain(value)}


def _is_equal_on_all_replicas(variable: KerasVariable) -> bool:
    return not (
        isinstance(variable, SyncOnReadVariable) or is_on_servers(variable) or is_table(variable)
    )


def _array(variable: KerasVariable) -> np.ndarray:
    value = variable if isinstance(variable, tf.Tensor) else tf.convert_to_tensor(variable)
    return _plain(value.numpy())


def _plain(value: Nested, depth: int = 0) -> Nested:
    """Returns a value that `plain_values` takes; raises _NotPlain if it is none."""
    kind = type(value)
    if kind in (*_NUMBERS, str):
        return value
    if kind is np.ndarray or isinstance(value, np.generic):
        if value.dtype.kind in _KINDS:
            return value
        raise _NotPlain
    if depth == _MAX_DEPTH:  # it may hold itself
        raise _NotPlain
    if kind in (list, tuple):
        return kind(_plain(item, depth + 1) for item in value)
    if kind is dict and all(type(key) in (*_NUMBERS, str) for key in value):
        return {key: _plain(item, depth + 1) for key, item in value.items()}
    raise _NotPlain


def _leaves(value: Nested) -> Iterator[object]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    else:
        yield value


def _bytes(value: Nested) -> int:
    return sum(leaf.nbytes if isinstance(leaf, np.ndarray) else 8 for leaf in _leaves(value))


def _has_text(carried: dict[str, Nested]) -> bool:
    """Whether what an attribute holds is, or has, a text."""
    return "plain" in carried and any(isinstance(leaf, str) for leaf in _leaves(carried))


def _put(owner: object, name: str, carried: dict[str, Nested]) -> None:
    """Gives an attribute the value that another member's has."""
    ((kind, value),) = carried.items()
    own: Any = vars(owner).get(name)
    if kind == "generator":
        if isinstance(own, np.random.Generator):
            own.bit_generator.state = value
    elif kind == "random":
        if isinstance(own, random.Random):
            own.setstate(value)
    elif kind == "seed":
        if own is not None:
            own.state.assign(value)
    elif kind == "variable":
        if is_variable(own):
            own.assign(value)
    elif kind == "state":
        if _has_state(own):
            _set_state(own, value)
    elif kind == "mapping":
        if isinstance(own, dict):
            own.clear()
            own.update(value)
    elif kind == "function":
        setattr(owner, name, _FUNCTIONS[value])
    elif kind == "tensor":
        setattr(owner, name, tf.constant(value))
    elif kind == "deque":
        items, length = value
        if not isinstance(own, collections.deque) or own.maxlen != length:
            setattr(owner, name, own := collections.deque(maxlen=length))
        own.clear()
        own.extend(items)
    elif kind == "set":
        _fill(owner, name, own, set(value))
    else:
        _fill(owner, name, own, value)


def _fill(owner: object, name: str, own: Any, value: Any) -> None:
    if isinstance(value, np.ndarray) and _fits(own, value):
        own[...] = value
    elif type(own) is not type(value) or not isinstance(value, list | dict | set):
        setattr(owner, name, value)
    elif isinstance(value, list):
        own[:] = value
    else:
        own.clear()
        own.update(value)


def _fits(own: object, value: np.ndarray) -> bool:
    return (
        type(own) is np.ndarray
        and (own.shape, own.dtype) == (value.shape, value.dtype)
        and own.flags.writeable
    )
