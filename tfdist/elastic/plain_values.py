"""Named numbers, texts, lists, dicts and arrays as bytes.

    {"epoch": 3, "best": array, "seen": [1, 2]}
      |
      |   "json"     {"epoch": 3, "best": {"array": 0}, "seen": {"list": [1, 2]}}
      |   "array_0"  the array
      `-> a file of numpy.savez

No byte of it is a pickle: reading it runs no code of the sender. Nothing is compressed, and each
array is used once, so that values are not much larger than the bytes they come in.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping

import numpy as np

from tfdist._types import Nested
from tfdist.config.validation import show

_SCALARS = (bool, int, float, str, type(None))
# Of numpy.dtype.kind: bools, integers, floats, complex numbers, texts, bytes and times.
_KINDS = "biufcUSmM"


def encode(values: Mapping[str, Nested], owner: str) -> bytes:
    """Returns values as bytes.

    Args:
      values: each is None, a bool, an int, a float, a str, a NumPy number or array, or a list,
        tuple or dict of such values. Keys of dicts are None, bools, numbers or texts.
      owner: for messages.

    Raises:
      TypeError: a value is something else; names it.
    """
    arrays: dict[str, np.ndarray] = {}

    def packed(value: Nested, name: str) -> object:
        # Subclasses, such as enum's and collections', would come out as something else.
        if type(value) in _SCALARS:
            return value
        if isinstance(value, np.generic) or type(value) is np.ndarray:
            if value.dtype.kind not in _KINDS:
                raise TypeError(
                    f"{owner}: expected an array of numbers or texts in {name!r}, received one of "
                    f"{value.dtype}"
                )
            kind = "array" if isinstance(value, np.ndarray) else "number"
            arrays[f"array_{len(arrays)}"] = np.asarray(value)
            return {kind: len(arrays) - 1}
        if type(value) in (list, tuple):
            items = [packed(item, f"{name}[{i}]") for i, item in enumerate(value)]
            return {type(value).__name__: items}
        if type(value) is dict:
            return {
                "dict": [
                    [_key(key, name, owner), packed(item, f"{name}[{key!r}]")]
                    for key, item in value.items()
                ]
            }
        raise TypeError(
            f"{owner}: expected numbers, texts, arrays of NumPy, or lists, tuples and dicts of "
            f"them in {name!r}, received {_type(value)}"
        )

    text = json.dumps({name: packed(value, name) for name, value in values.items()})
    buffer = io.BytesIO()
    np.savez(buffer, json=np.frombuffer(text.encode(), np.uint8), **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def decode(content: bytes) -> dict[str, Nested]:
    """Returns the values that `encode` was given, as new objects.

    Raises:
      ValueError: the bytes are not from `encode`.
    """
    try:
        return _decoded(content)
    # Of zipfile: also RuntimeError (encrypted), NotImplementedError, EOFError and OSError.
    except Exception as error:
        raise ValueError(
            f"expected values of another member, received {len(content)} bytes that are none: "
            f"{show(str(error))}"
        ) from error


def _decoded(content: bytes) -> dict[str, Nested]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for entry in archive.infolist():
            if entry.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"expected no compressed array, received {show(entry.filename)}")
    with np.load(io.BytesIO(content), allow_pickle=False) as found:
        values = json.loads(found["json"].tobytes())
        used: set[int] = set()

        def array(index: object) -> np.ndarray:
            if type(index) is not int or index in used:
                raise ValueError(f"expected an array that is used once, received {show(index)}")
            used.add(index)
            return found[f"array_{index}"]

        def unpacked(value: object) -> Nested:
            if isinstance(value, list):
                raise ValueError("expected the kind of a list, received none")
            if not isinstance(value, dict):
                return value
            ((kind, inner),) = value.items()
            if kind == "array":
                return array(inner)
            if kind == "number":
                return array(inner)[()]
            if not isinstance(inner, list):
                raise ValueError(f"expected the items of a {show(kind)}, received {show(inner)}")
            if kind == "list":
                return [unpacked(item) for item in inner]
            if kind == "tuple":
                return tuple(unpacked(item) for item in inner)
            if kind == "dict":
                return {key: unpacked(item) for key, item in inner}
            raise ValueError(f"expected a list, a tuple or a dict, received {show(kind)}")

        return {name: unpacked(value) for name, value in values.items()}


def _key(key: object, name: str, owner: str) -> object:
    if type(key) not in _SCALARS:
        raise TypeError(
            f"{owner}: expected numbers or texts as keys of {name!r}, received {_type(key)}"
        )
    return key


def _type(value: object) -> str:
    kind = type(value)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
