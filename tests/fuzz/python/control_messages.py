"""Requests of the control plane: `tfdist/control/messages.py`, for each kind.

Input: a byte for the kind, then the body, or how a right body is altered. What is accepted has the
types that its class says, can be encoded and is the same again; anything else is a MessageError.
"""

import dataclasses

from altered_json import altered

from tfdist.control import messages

_KINDS = list(messages.REQUESTS.values())
_VALUES = {"int": 1, "float": 2.5, "str": "text", "bool": True}
_TYPES = {"int": int, "float": int | float, "str": str, "bool": bool}


def run(data: bytes) -> None:
    number, body = data[0] if data else 0, data[1:]
    kind = _KINDS[number % len(_KINDS)]
    if number >= 128:
        body = altered(_right(kind), body)
    try:
        request = messages.decode(kind, body)
    except messages.MessageError as error:
        assert str(error)
        return
    for field in dataclasses.fields(kind):
        value = getattr(request, field.name)
        assert isinstance(value, _TYPES[field.type]), (field.name, value)
    assert messages.decode(kind, messages.encode(request)) == request
    if hasattr(request, "protocol"):
        messages.reason_to_refuse(request)


def _right(kind: type) -> bytes:
    values = {field.name: _VALUES[field.type] for field in dataclasses.fields(kind)}
    return messages.encode(kind(**values))


def seeds() -> list[bytes]:
    found = [bytes([number]) + _right(kind) for number, kind in enumerate(_KINDS)]
    found += [bytes([128 + number, 1, number]) for number in range(128)]
    return [*found, b"\0" + b"[" * 2000, b'\0{"wait": 1e999}', b'\0{"process": "\\ud800"}']
