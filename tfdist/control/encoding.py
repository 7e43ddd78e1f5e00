"""The encoding of messages: a JSON object, and behind a zero byte the bytes that it announces.

    {"part": "a3f0", "content": {"": 5}}\\0hello

A bytes value stands in the JSON text as an object with its length under an empty name. JSON text
has no zero byte, and the values follow in the order of the text.

A request is a dataclass. Its fields may be `int`, `float`, `str`, `bool`, `bytes`, dataclasses,
`list[T]`, `tuple[T, ...]`, `dict[str, T]` and `T | None`; each is checked when it is received. An
answer is a dict of such values, whose caller checks what it needs.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import reprlib
import types
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MAX_DEPTH = 16  # levels of objects and lists
# Values and names in a request: small ones need thirty times their length in memory.
MAX_ITEMS = 100_000

Request = TypeVar("Request", bound="DataclassInstance")
# Returns the value of a field of this name, or raises a MessageError.
_Check = Callable[[str, object], object]

# A decoded object. The reader of a field knows its type by the message, or checks it.
JsonObject: TypeAlias = dict[str, Any]

_TOKEN = re.compile(rb'\\.|["\[\]{},]', re.DOTALL)
_SHOWN = reprlib.Repr()
_SHOWN.maxlevel = 3
_SHOWN.maxstring = _SHOWN.maxother = _SHOWN.maxlong = 80


class MessageError(Exception):
    """A message is not encoded so, or is of another kind; the text names the difference."""


def wire_name(kind: type) -> str:
    """Returns the name of a kind of request in its method, in proofs and in errors."""
    return kind.__name__.removesuffix("Request")


def encode(message: object) -> bytes:
    """Returns a dataclass or dict as bytes."""
    attached: list[bytes] = []

    def plain(value: object) -> object:
        if isinstance(value, bytes):
            attached.append(value)
            return {"": len(value)}
        if dataclasses.is_dataclass(value):
            return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        raise TypeError(f"expected a value that a message can have, received {value!r:.80}")

    # The receiver refuses half of a surrogate pair.
    text = json.dumps(message, default=plain, ensure_ascii=False).encode(errors="surrogatepass")
    return b"\0".join((text, b"".join(attached))) if attached else text


def decode_object(body: bytes, max_items: float = math.inf) -> JsonObject:
    """Returns the object in `body`, all of whose texts UTF-8 can encode.

    Args:
      body: the encoded message.
      max_items: the largest number of values and names in it.

    Raises:
      MessageError: it has something else.
    """
    text, separator, attached = body.partition(b"\0")
    problem = _problem_with_shape(text, max_items)
    if problem:
        raise _not_an_object(f"{len(body)} bytes with more than {problem}")
    offset = 0

    def with_bytes(fields: JsonObject) -> object:
        nonlocal offset
        if len(fields) != 1 or type(length := fields.get("")) is not int:
            return fields
        if not 0 <= length <= len(attached) - offset:
            raise _wrong_bytes(body)
        offset += length
        return attached[offset - length : offset]

    try:
        message = json.loads(text.decode(), object_hook=with_bytes)
        if b"\\u" in text:
            # Fails for a lone surrogate, which no later code could hash, send or print.
            json.dumps(message, default=len, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise _not_an_object(f"{len(body)} bytes with half of a surrogate pair") from None
    except ValueError:
        raise _not_an_object(f"{len(body)} bytes of no JSON") from None
    if offset != len(attached):
        raise _wrong_bytes(body)
    if not isinstance(message, dict):
        raise _not_an_object(type(message).__name__)
    return message


def decode(kind: type[Request], body: bytes) -> Request:
    """Returns the `kind` of message in `body`.

    Raises:
      MessageError: a field has another type, or a number is none that a float can hold.
    """
    checks = _checks(kind)
    message = decode_object(body, MAX_ITEMS)
    try:
        return _checked(kind, checks, "", message)
    except MessageError as error:
        raise MessageError(f"{wire_name(kind)}: {error}") from None


def _problem_with_shape(text: bytes, max_items: float) -> str:
    """Returns what a JSON text has too much of, or an empty text. It parses nothing yet."""
    if len(text) <= max_items and text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return ""
    depth, items, is_in_text = 0, 0, False
    for found in _TOKEN.finditer(text):
        token = found.group()
        if token == b'"':
            is_in_text = not is_in_text
        elif is_in_text:
            continue
        elif token in (b"]", b"}"):
            depth -= 1
            continue
        elif token != b",":
            depth += 1
        items += 1
        if depth > MAX_DEPTH:
            return f"{MAX_DEPTH} levels"
        if items > max_items:
            return f"{max_items:,} values"
    return ""


@functools.cache
def _checks(kind: type[DataclassInstance]) -> dict[str, _Check]:
    """Returns the check of each field of a dataclass.

    Raises:
      TypeError: a message cannot have a field of that type.
    """
    hints = typing.get_type_hints(kind)
    checks = {}
    for field in dataclasses.fields(kind):
        try:
            checks[field.name] = _check(hints[field.name])
        except TypeError as error:
            raise TypeError(f"{kind.__name__}.{field.name}: {error}") from None
    return checks


def _check(hint: Any) -> _Check:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _check_dataclass(hint)
    if hint in (int, str, bool, bytes, float):
        return _check_scalar(hint)
    if origin is list and len(arguments) == 1:
        return _check_list(_shown(hint), list, _check(arguments[0]))
    if origin is tuple and len(arguments) == 2 and arguments[1] is ...:
        return _check_list(_shown(hint), tuple, _check(arguments[0]))
    if origin is dict and arguments[0] is str:
        return _check_map(_shown(hint), _check(arguments[1]))
    if origin in (typing.Union, types.UnionType) and len(arguments) == 2:
        (other,) = (argument for argument in arguments if argument is not type(None))
        return _check_optional(_shown(hint), _check(other))
    raise TypeError(f"expected a type that a message can have, received {hint!r}")


def _check_scalar(kind: type) -> _Check:
    def check(name: str, value: object) -> object:
        matches = isinstance(value, int | float if kind is float else kind)
        if not matches or (isinstance(value, bool) and kind is not bool):
            raise _mismatch(name, kind.__name__, value)
        if kind is float and not _is_finite(value):
            raise _mismatch(name, "a finite number", value)
        return value

    return check


def _check_dataclass(kind: type[DataclassInstance]) -> _Check:
    checks = _checks(kind)

    def check(name: str, value: object) -> object:
        if not isinstance(value, dict):
            raise _mismatch(name, kind.__name__, value)
        return _checked(kind, checks, f"{name}.", value)

    return check


def _checked(kind: type[Request], checks: dict[str, _Check], prefix: str, fields: dict) -> Request:
    return kind(**{name: check(prefix + name, fields.get(name)) for name, check in checks.items()})


def _check_list(shown: str, kind: type[list] | type[tuple], check_item: _Check) -> _Check:
    def check(name: str, value: object) -> object:
        if not isinstance(value, list):
            raise _mismatch(name, shown, value)
        return kind(check_item(f"{name}[{index}]", item) for index, item in enumerate(value))

    return check


def _check_map(shown: str, check_item: _Check) -> _Check:
    def check(name: str, value: object) -> object:
        if not isinstance(value, dict):
            raise _mismatch(name, shown, value)
        return {key: check_item(f"{name}[{_SHOWN.repr(key)}]", item) for key, item in value.items()}

    return check


def _check_optional(shown: str, check_other: _Check) -> _Check:
    def check(name: str, value: object) -> object:
        if value is None:
            return None
        try:
            return check_other(name, value)
        except MessageError as error:
            if str(error).startswith(f"expected {name} to be "):
                raise _mismatch(name, shown, value) from None
            raise

    return check


def _shown(hint: Any) -> str:
    """Returns a type as its class writes it."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(_shown, arguments))
    if origin is not None:
        return f"{origin.__name__}[{', '.join(map(_shown, arguments))}]"
    if hint is ...:
        return "..."
    return "None" if hint is type(None) else hint.__name__


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an int that no float can hold
        return False


def _mismatch(name: str, expected: str, value: object) -> MessageError:
    return MessageError(f"expected {name} to be {expected}, received {_SHOWN.repr(value)[:80]}")


def _not_an_object(received: str) -> MessageError:
    return MessageError(f"expected a JSON object, received {received}")


def _wrong_bytes(body: bytes) -> MessageError:
    return MessageError(
        f"expected a JSON object and the bytes that it announces, received {len(body)} bytes"
    )
