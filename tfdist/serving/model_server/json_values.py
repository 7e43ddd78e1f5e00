"""Tensors in JSON, as TensorFlow Serving writes them: lists of numbers, texts, {"b64": ...}."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeGuard

import numpy as np
import tensorflow as tf

from tfdist.serving.model_server.call_error import invalid
from tfdist.serving.model_server.signature import described

# Arrays of numpy have no more dimensions.
_MAX_DEPTH = 32
# By bytes of a type: all whole numbers up to here are numbers of the type. Types of 16 bits are for
# values that may be rounded.
_LARGEST_WHOLE = {4: (1 << 24) - 1, 8: (1 << 53) - 1}
_LARGEST = float(np.finfo(np.float32).max)
# The name of an output of bytes that are no text ends so.
_BYTES_SUFFIX = "_bytes"
_KEY = "b64"
# Values that are made text at once, while no other thread of Python runs: a few milliseconds.
_BLOCK = 1 << 14


class Constant(float):
    """A number that is a word: NaN, Infinity or -Infinity, which TensorFlow Serving takes, too."""


def array_of(name: str, values: object, spec: tf.TensorSpec) -> np.ndarray:
    """Returns the array of an input.

    Args:
      name: of the input.
      values: a number, a text or nested lists of them.
      spec: the input's type and shape.

    Raises:
      CallError: the values are of another type, or the lists have different lengths.
    """
    if spec.dtype == tf.string:
        return _strings(name, values, spec)
    kind = np.dtype(spec.dtype.as_numpy_dtype)
    received = _types(name, values)
    if not received <= _ALLOWED.get(kind.kind, _ALLOWED["f"]):
        names = sorted(_NAMES.get(type_, type_.__name__) for type_ in received)
        raise invalid(
            f"input {name!r}: expected {described(spec)}, received values of JSON that are: "
            f"{', '.join(names)}"
        )
    try:
        if kind.kind in "iu":
            array = _integers(values, kind)
        else:
            array = _numbers(values, kind, received)
    except (ValueError, OverflowError) as error:
        raise invalid(f"input {name!r}: expected {described(spec)}: {error}") from None
    return array


# The types of JSON's values that an array of a kind takes.
_ALLOWED: dict[str, set[type]] = {"b": {bool}, "i": {int}, "u": {int}, "f": {int, float, Constant}}
_NAMES: dict[type, str] = {
    **{str: "text", dict: "object", bool: "true or false", int: "whole number", float: "number"},
    **{Constant: "NaN or Infinity", type(None): "null"},
}


def _integers(values: object, kind: np.dtype) -> np.ndarray:
    wide = np.array(values, object if kind == np.uint64 else np.int64)
    limits = np.iinfo(kind)
    # Older numpy takes a part of the bits of a number that is too large.
    if wide.size and not limits.min <= wide.min() <= wide.max() <= limits.max:
        raise ValueError(f"received a number outside [{limits.min}, {limits.max}]")
    return wide.astype(kind)


def _numbers(values: object, kind: np.dtype, received: set[type]) -> np.ndarray:
    if kind.kind == "b":
        return np.array(values, kind)
    wide = np.array(values, np.float64)
    if Constant not in received and np.any(np.isinf(wide)):  # such as 1e999
        raise ValueError("received a number that is too large")
    if int in received:
        _check_whole(values, wide, kind)
    with np.errstate(over="ignore"):
        array = wide.astype(kind)
    if np.any(np.isinf(array) & ~np.isinf(wide)):
        raise ValueError("received a number that is too large for the type")
    return array


def _check_whole(values: object, wide: np.ndarray, kind: np.dtype) -> None:
    """Raises `ValueError` if a whole number, such as an id, may become another one."""
    largest = _LARGEST_WHOLE.get(kind.itemsize)
    if largest is None or not np.any(np.abs(wide) > largest):
        return
    if any(type(value) is int and abs(value) > largest for value in _flat(values)):
        raise ValueError(
            f"received a whole number outside [-{largest}, {largest}], which the type would round; "
            "a number with a point may be rounded"
        )


def _flat(values: object) -> Iterator[object]:
    """Yields the values in nested lists."""
    if isinstance(values, list):
        for part in values:
            yield from _flat(part)
    else:
        yield values


def is_too_large(value: float) -> bool:
    """Whether a number in JSON is larger than all of float32; `Infinity` is not."""
    return not isinstance(value, Constant) and abs(value) > _LARGEST


def _types(name: str, values: object, depth: int = 0) -> set[type]:
    """Returns the types of all values in nested lists."""
    if not isinstance(values, list):
        return {type(values)}
    _check_depth(name, depth)
    types = set(map(type, values))
    if list in types:
        types.discard(list)
        for part in values:
            if isinstance(part, list):
                types |= _types(name, part, depth + 1)
    return types


def _check_depth(name: str, depth: int) -> None:
    if depth >= _MAX_DEPTH:
        raise invalid(f"input {name!r}: expected lists in at most {_MAX_DEPTH} lists")


def _strings(name: str, values: object, spec: tf.TensorSpec) -> np.ndarray:
    shape = _shape(name, values)
    flat: list[bytes] = []
    _collect(name, values, len(shape), flat)
    array = np.empty(len(flat), object)
    array[:] = flat
    try:
        return array.reshape(shape)
    except ValueError:
        raise invalid(
            f"input {name!r}: expected {described(spec)}, received lists of different lengths"
        ) from None


def _shape(name: str, values: object) -> tuple[int, ...]:
    shape: list[int] = []
    while isinstance(values, list):
        _check_depth(name, len(shape))
        shape.append(len(values))
        if not values:
            break
        values = values[0]
    return tuple(shape)


def _collect(name: str, values: object, depth: int, flat: list[bytes]) -> None:
    if depth and isinstance(values, list):
        for part in values:
            _collect(name, part, depth - 1, flat)
    elif not depth and isinstance(values, str):
        flat.append(utf8_of(name, values))
    elif not depth and is_bytes(values):
        flat.append(bytes_of(name, values))
    else:
        raise invalid(
            f'input {name!r}: expected texts or {{"b64": ...}} in lists of equal depth, received '
            f"{_NAMES.get(type(values), type(values).__name__)}"
        )


def utf8_of(name: str, text: str) -> bytes:
    """Returns a text of a request; raises `CallError` if it is no Unicode, as JSON's "\\ud800"."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise invalid(f"input {name!a}: expected Unicode: {error.reason}") from None


def is_bytes(value: object) -> TypeGuard[Mapping[str, str]]:
    """Whether a value of JSON is bytes in base64."""
    return isinstance(value, dict) and value.keys() == {_KEY} and isinstance(value[_KEY], str)


def bytes_of(name: str, value: Mapping[str, str]) -> bytes:
    """Returns the bytes of {"b64": ...}; raises `CallError` if they are no base64."""
    try:
        return base64.b64decode(value[_KEY], validate=True)
    except (binascii.Error, ValueError) as error:
        raise invalid(f"input {name!r}: expected base64, received other text: {error}") from None


def json_of(name: str, values: np.ndarray) -> Any:
    """Returns an output for JSON: nested lists.

    Args:
      name: of the output. Strings are texts; with a name that ends in "_bytes" they are
        {"b64": ...}.
      values: the output.
    """
    if values.dtype != object:
        if values.dtype.kind not in "biuf":
            values = values.astype(np.float32)
        # Of the type's own precision: 0.1 is not to be 0.10000000149011612.
        if values.dtype.kind == "f" and values.dtype.itemsize < 8:
            values = _shortest(values)
        return values.tolist()
    if name.endswith(_BYTES_SUFFIX):
        return _mapped(values.tolist(), lambda v: {_KEY: base64.b64encode(v).decode("ascii")})
    return _mapped(values.tolist(), lambda value: _text(name, value))


def _shortest(values: np.ndarray) -> np.ndarray:
    """Returns the shortest decimal numbers that stand for the values.

    Block by block: a text of numpy takes 128 bytes, and other threads wait meanwhile.
    """
    flat = values.reshape(-1)
    found = np.empty(flat.shape, np.float64)
    for begin in range(0, flat.size, _BLOCK):
        found[begin : begin + _BLOCK] = flat[begin : begin + _BLOCK].astype(str)
    return found.reshape(values.shape)


def encoded(value: object) -> bytes:
    """Returns JSON as `json.dumps` does, but lets other threads run meanwhile."""
    return b"".join(piece.encode() for piece in _pieces(value))


def _pieces(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        separator = "{"
        for key, one in value.items():
            yield f"{separator}{json.dumps(key)}: "
            yield from _pieces(one)
            separator = ", "
        yield "}" if value else "{}"
    elif isinstance(value, list) and value:
        yield "["
        count = max(1, _BLOCK // _leaves(value[0]))  # of small values at once
        for begin in range(0, len(value), count):
            if begin:
                yield ", "
            if count > 1:
                yield json.dumps(value[begin : begin + count])[1:-1]
            else:
                yield from _pieces(value[begin])
        yield "]"
    else:
        yield json.dumps(value)


def _leaves(value: object) -> int:
    """Returns about how many values a nested list has; its parts are about equal."""
    if isinstance(value, dict):
        return sum(map(_leaves, value.values())) + 1
    return len(value) * _leaves(value[0]) if isinstance(value, list) and value else 1


def _text(name: str, value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        raise invalid(
            f"output {name!r}: expected text in UTF-8, received other bytes; the model can name an "
            f"output of bytes {name}{_BYTES_SUFFIX}"
        ) from None


def _mapped(values: object, function: Callable[[Any], object]) -> object:
    if isinstance(values, list):
        return [_mapped(part, function) for part in values]
    return function(values)


def rows_of(outputs: Mapping[str, np.ndarray], names: Iterable[str]) -> int:
    """Returns the number of rows that all outputs have.

    Raises:
      CallError: one has another number of rows, or is a scalar.
    """
    sizes = {name: (len(outputs[name]) if outputs[name].ndim else None) for name in names}
    if len(set(sizes.values())) != 1 or None in sizes.values():
        raise invalid(
            f"expected outputs with one row for each instance, received the rows {sizes}; ask in "
            'the column format ("inputs")'
        )
    return next(iter(sizes.values())) or 0
