"""Requests of the control plane: `tfdist/control/encoding.py`, for each kind.

Input: a byte for the kind, then the body, or how a right body is altered. An accepted message has
the types that its class says, can be encoded and is the same again; anything else is a
MessageError. Pieces that are accepted are joined, or refused with a MessageError.
"""

import dataclasses
import types
import typing

from altered_json import altered

from support.every_method import METHODS, made_up
from tfdist.control import encoding
from tfdist.control.pieces import LongRequests, PieceRequest

_KINDS = [method.request for method in METHODS]
_VALUES = {int: 1, float: 2.5, str: "text", bool: True, bytes: b"\0bytes"}


def run(data: bytes) -> None:
    number, body = data[0] if data else 0, data[1:]
    kind = _KINDS[number % len(_KINDS)]
    if number >= 128:
        text, separator, attached = _right(kind).partition(b"\0")
        body = altered(text, body) + separator + attached
    try:
        request = encoding.decode(kind, body)
    except encoding.MessageError as error:
        assert str(error)
        return
    _check(kind, request)
    assert encoding.decode(kind, encoding.encode(request)) == request
    if isinstance(request, PieceRequest):
        server = LongRequests(0)
        try:
            joined = server.add(("host", 1), request)
            assert joined in (None, request.content)
            server.add(("host", 1), dataclasses.replace(request, offset=len(request.content)))
        except encoding.MessageError as error:
            assert str(error)


def _check(hint: typing.Any, value: typing.Any) -> None:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        assert type(value) is hint
        for name, each in typing.get_type_hints(hint).items():
            _check(each, getattr(value, name))
    elif origin in (list, tuple):
        assert type(value) is origin
        for item in value:
            _check(arguments[0], item)
    elif origin is dict:
        for key, item in value.items():
            assert type(key) is str
            _check(arguments[1], item)
    elif origin in (typing.Union, types.UnionType):
        if value is not None:
            _check(arguments[0], value)
    else:
        assert type(value) in ((int, float) if hint is float else (hint,)), (hint, value)


def _right(kind: type) -> bytes:
    return encoding.encode(made_up(kind, _VALUES.__getitem__))


def seeds() -> list[bytes]:
    found = [bytes([number]) + _right(kind) for number, kind in enumerate(_KINDS)]
    found += [bytes([128 + number, 1, number]) for number in range(128)]
    found += [b"\1" + b"[" * 2000, b'\1{"wait": 1e999}', b'\1{"wait": "\\ud800"}']
    return [*found, b'\0{"content": {"": 9}}\0123', b'\0{"content": {"": -1}}\0']
