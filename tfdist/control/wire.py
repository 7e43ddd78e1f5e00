"""What control messages look like on the wire, and how a shared secret seals them.

A message is a JSON object. With a secret, metadata carries `tfdist-nonce` (random, chosen by the
caller) and `tfdist-seal`, a keyed hash over direction, method, nonce and body. The answer's seal
covers the request's nonce, so an answer cannot be forged, nor taken from another call. Nothing is
encrypted.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Iterable
from typing import Any, TypeVar

PROTOCOL = 1
SERVICE = "tfdist.Control"
JOIN = f"/{SERVICE}/Join"
EXIT = f"/{SERVICE}/Exit"
ATTACH = f"/{SERVICE}/Attach"
CHECKPOINT = f"/{SERVICE}/Checkpoint"
STATS = f"/{SERVICE}/Stats"
LARGEST_REQUEST = 64 * 1024
LARGEST_ANSWER = 16 * 1024 * 1024
_NONCE = "tfdist-nonce"
_SEAL = "tfdist-seal"
_NONCE_FORM = re.compile("[0-9a-f]{32}")

Metadata = tuple[tuple[str, str], ...]
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
    """The chief wants a parameter server to write its part of checkpoint `number`."""

    fingerprint: str
    number: int
    wait: float


@dataclasses.dataclass(frozen=True)
class Stats:
    """Somebody wants to know what a parameter server has done so far."""

    protocol: int
    wait: float


REQUESTS = {JOIN: Join, EXIT: Exit, ATTACH: Attach, CHECKPOINT: Checkpoint, STATS: Stats}


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


class Sealer:
    """Seals messages with the shared secret and checks the seals of others.

    Args:
      secret: the shared secret, or None to neither seal nor accept sealed messages: a secret known
        to one side only is a mistake that should show at once.
    """

    def __init__(self, secret: bytes | None) -> None:
        self._secret = secret

    def _seal(self, direction: str, method: str, nonce: str, body: bytes) -> str:
        assert self._secret is not None
        # None of the parts before the body can contain a zero byte, so the whole is unambiguous.
        text = b"\0".join([direction.encode(), method.encode(), nonce.encode(), body])
        return hmac.new(self._secret, text, hashlib.sha256).hexdigest()

    def seal_request(self, method: str, body: bytes) -> tuple[Metadata, str]:
        """Returns a request's metadata, and the nonce that its answer has to be sealed with."""
        nonce = secrets.token_hex(16)
        if self._secret is None:
            return (), nonce
        return ((_NONCE, nonce), (_SEAL, self._seal("request", method, nonce, body))), nonce

    def problem_with_request(self, method: str, metadata: Any, body: bytes) -> str | None:
        """Returns why a request must be refused, or None if it is to be trusted."""
        values = {key: value for key, value in metadata or ()}
        nonce, seal = values.get(_NONCE), values.get(_SEAL)
        if self._secret is None:
            return None if seal is None else "the caller has a shared secret, this task has none"
        if not isinstance(nonce, str) or not isinstance(seal, str):
            return "this task has a shared secret, the caller sent no proof of one"
        if not _NONCE_FORM.fullmatch(nonce) or not self._matches(
            seal, self._seal("request", method, nonce, body)
        ):
            return "the two tasks have different shared secrets"
        return None

    def seal_answer(self, method: str, request_metadata: Any, body: bytes) -> Metadata:
        """Returns metadata to send with the answer to a request that was found in order."""
        if self._secret is None:
            return ()
        nonce = {key: value for key, value in request_metadata}[_NONCE]
        return ((_SEAL, self._seal("answer", method, nonce, body)),)

    def problem_with_answer(
        self, method: str, nonce: str, metadata: Any, body: bytes
    ) -> str | None:
        """Returns why an answer must not be trusted, or None if it is to be."""
        if self._secret is None:
            return None
        seal = {key: value for key, value in metadata or ()}.get(_SEAL)
        if not isinstance(seal, str):
            return "the caller has a shared secret, the answer carries no proof of one"
        if not self._matches(seal, self._seal("answer", method, nonce, body)):
            return "the two tasks have different shared secrets"
        return None

    @staticmethod
    def _matches(received: str, expected: str) -> bool:
        # Bytes, because compare_digest refuses text that is not ASCII.
        return hmac.compare_digest(received.encode(), expected.encode())
