"""What control messages look like on the wire: JSON objects. `signing` says how they are proven."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from typing import Any, TypeVar

PROTOCOL = 3
SERVICE = "tfdist.Control"
JOIN = f"/{SERVICE}/Join"
EXIT = f"/{SERVICE}/Exit"
ATTACH = f"/{SERVICE}/Attach"
CHECKPOINT = f"/{SERVICE}/Checkpoint"
STATS = f"/{SERVICE}/Stats"
EPOCH = f"/{SERVICE}/Epoch"
WAITS = f"/{SERVICE}/Waits"
CHALLENGE = f"/{SERVICE}/Challenge"  # empty; answered with "challenge", see `signing`
LARGEST_REQUEST = 64 * 1024
LARGEST_ANSWER = 16 * 1024 * 1024

Request = TypeVar("Request")


class WireError(Exception):
    """A message is not what this protocol sends; the text says how."""


@dataclasses.dataclass(frozen=True)
class Join:
    """A rank wants to take part.

    `process` is one per process, so that a restarted task is recognised; `attempt` is one per
    rendezvous, so that a repeated call is. After `wait` seconds without success the answer is
    "waiting"; with `final` the rank is then no longer counted as present.
    """

    protocol: int
    rank: int
    world_size: int
    fingerprint: str
    data_address: str
    process: str
    attempt: str
    wait: float
    final: bool


@dataclasses.dataclass(frozen=True)
class Exit:
    """A rank is done with `generation` of `meeting`; if `abandon`, somebody never will be."""

    protocol: int
    rank: int
    meeting: str
    generation: int
    wait: float
    abandon: bool


@dataclasses.dataclass(frozen=True)
class Attach:
    """A worker wants a parameter server's data address; `config` is a PsConfig's text."""

    protocol: int
    rank: int
    world_size: int
    fingerprint: str
    process: str
    config: str
    wait: float


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The chief, `process`, wants a parameter server to write its part of checkpoint `number`."""

    fingerprint: str
    process: str
    number: int
    wait: float


@dataclasses.dataclass(frozen=True)
class Stats:
    """Somebody wants to know what a parameter server has done so far."""

    protocol: int
    wait: float


@dataclasses.dataclass(frozen=True)
class Epoch:
    """A worker has come to the end of an epoch; `phase` and what it posts: see ps/epoch_rounds.py.

    What it posts comes in `parts` requests, in each of which `data` is the next piece of the text.
    The last is answered as a request of 0 parts is, which only asks for the round's answer: after
    `wait` seconds without one, "waiting".
    """

    protocol: int
    fingerprint: str
    process: str
    rank: int
    fit: int
    epoch: int
    phase: int
    stop: bool
    part: int
    parts: int
    data: str
    wait: float


@dataclasses.dataclass(frozen=True)
class Waits:
    """A parameter server wants to know which workers' steps wait for which others' on another."""

    protocol: int
    fingerprint: str
    wait: float


REQUESTS = {
    JOIN: Join,
    EXIT: Exit,
    ATTACH: Attach,
    CHECKPOINT: Checkpoint,
    STATS: Stats,
    EPOCH: Epoch,
    WAITS: Waits,
}


def encode(message: Any) -> bytes:
    """Returns a dataclass or dict as JSON bytes."""
    fields = message if isinstance(message, dict) else dataclasses.asdict(message)
    return json.dumps(fields).encode()


def decode_object(body: bytes) -> dict[str, Any]:
    """Returns the JSON object in `body`, else raises WireError."""
    try:
        message = json.loads(body)
    # RecursionError: thousands of nested brackets.
    except (ValueError, RecursionError):
        raise WireError(f"expected a JSON object, received {len(body)} bytes of no JSON") from None
    if not isinstance(message, dict):
        raise WireError(f"expected a JSON object, received {type(message).__name__}")
    return message


def decode(kind: type[Request], body: bytes) -> Request:
    """Returns the `kind` of request in `body`; raises WireError if a field's type is wrong."""
    message = decode_object(body)
    types = {"int": int, "float": (int, float), "str": str, "bool": bool}
    values = {}
    for field in dataclasses.fields(kind):
        value = message.get(field.name)
        matches = isinstance(value, types[field.type])
        if not matches or (isinstance(value, bool) and field.type != "bool"):
            raise WireError(
                f"{kind.__name__}: expected {field.name} to be {field.type}, received "
                f"{repr(value)[:80]}"
            )
        values[field.name] = value
    return kind(**values)


def fingerprint(addresses: Iterable[str]) -> str:
    """Returns 16 hex digits that differ, for all practical purposes, between different lists."""
    return hashlib.sha256(json.dumps(list(addresses)).encode()).hexdigest()[:16]
