"""Proofs between the processes of an elastic job, with or without a shared secret.

Each process draws a random *key* at its start. Its *id* is the key's hash, and is told to members
of its job alone, and to the member where it waits. So there are three proofs:

- A caller shows that it is of the callee's job: by a keyed hash of its request, with the callee's
  id or the job's.
- A callee shows that it is the process that is meant: by a keyed hash of its answer and the
  caller's nonce, with its own id.
- A process shows that it leaves the job itself: by its key, once and for all.

Ids, the job's id and the salts of generations are in no answer to a caller without such a proof,
except to a newcomer that is taken in. A proof with the job's id may go to a stranger that has taken
a task's port, which can show it to a member: it opens nothing but the answer to a probe. An
eavesdropper reads them where no encrypted network carries the calls, and without a secret can then
do what a member can. With one, `signing` authenticates all calls besides, and keeps them fresh.
"""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from collections.abc import Mapping
from typing import TypeVar

from tfdist.control import encoding, signing
from tfdist.elastic.protocol import messages

_ID_DIGITS = 32
# Fields of an answer that are not signed: the proof itself, and what the server only logs.
_UNSIGNED = ("proof", "details")

Request = (
    messages.ElasticProbeRequest | messages.ElasticFormRequest | messages.ElasticAddressRequest
)
_Request = TypeVar("_Request", bound=Request)


def new_key() -> str:
    """Returns a new process's key."""
    return secrets.token_hex(16)


def process_id(key: str) -> str:
    """Returns the id of the process that has a key."""
    return hashlib.sha256(key.encode()).hexdigest()[:_ID_DIGITS]


def prove(request: _Request, key: str) -> _Request:
    """Returns a request with a nonce, and with the proof that its caller knows `key`.

    Args:
      request: the request.
      key: the callee's id or the job's; empty for a caller that knows neither.
    """
    request = dataclasses.replace(request, nonce=secrets.token_hex(16), proof="")
    return dataclasses.replace(request, proof=_of_request(request, key)) if key else request


def is_proven(request: Request, key: str) -> bool:
    """Whether a request's caller knows `key`."""
    plain = dataclasses.replace(request, proof="")
    return bool(key) and signing.same(request.proof, _of_request(plain, key))


def sign(answer: dict[str, object], nonce: str, process: str) -> dict[str, object]:
    """Returns an answer with the proof that `process` gives it to the request with `nonce`."""
    return answer | {"proof": _of_answer(answer, nonce, process)}


def is_from(answer: Mapping[str, object], nonce: str, process: str) -> bool:
    """Whether `process` has given an answer to the request with `nonce`."""
    proof = answer.get("proof")
    return isinstance(proof, str) and signing.same(proof, _of_answer(answer, nonce, process))


def _of_request(request: Request, key: str) -> str:
    return signing.proof(key, encoding.wire_name(type(request)), body=encoding.encode(request))


def _of_answer(answer: Mapping[str, object], nonce: str, process: str) -> str:
    content = {field: value for field, value in answer.items() if field not in _UNSIGNED}
    return signing.proof(process, "answer", nonce, body=encoding.encode(content))
