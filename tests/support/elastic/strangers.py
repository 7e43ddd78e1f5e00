"""Calls to an elastic job by a stranger, made by hand, without tfdist's client."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import zlib

import grpc

from tfdist.control import encoding
from tfdist.control.service import CHALLENGE, Method
from tfdist.control.signing import Signer
from tfdist.elastic.protocol import messages

STRANGER = "0123456789abcdef" * 2


def call(server: str, method: Method, /, secret: bytes | None = None, **fields) -> dict:
    """Calls a task without tfdist's client; returns its answer, or a refusal with the reason."""
    body, path = json.dumps({"wait": 0.0, **fields}).encode(), method.path
    with grpc.insecure_channel(server, options=[("grpc.enable_http_proxy", 0)]) as channel:
        metadata = ()
        if secret is not None:
            answer = channel.unary_unary(CHALLENGE)(b"", timeout=10)
            metadata = Signer(secret).sign_request(path, json.loads(answer)["challenge"], body)
        try:
            answer = channel.unary_unary(path)(body, timeout=10, metadata=metadata)
            return encoding.decode_object(answer)
        except grpc.RpcError as error:
            return {"status": "refused", "reason": error.details()}


def probe(server: str, /, **fields) -> dict:
    """Probes a task."""
    fields = {"process": STRANGER, "fingerprint": "", "nonce": "n", "proof": "", **fields}
    return call(server, messages.ELASTIC_PROBE, **fields)


def form(server: str, description: dict, /, **fields) -> dict:
    """Asks a task for a place in the next generation, as a newcomer does except for `fields`."""
    newcomer = {
        "to": "",
        "process": STRANGER,
        "name": "worker 7",
        "address": "127.0.0.1:1",
        "description": description,
        "reference": "",
        "call": 0,
        "number": 0,
        "mark": "",
        "holds_state": False,
        "highest": 0,
        "dead": [],
    }
    fields = {"fingerprint": "", "nonce": "n", "proof": "", **newcomer, **fields}
    return call(server, messages.ELASTIC_FORM, **fields)


def leave(server: str, process: str, /, **fields) -> dict:
    """Says in the name of a process that it leaves."""
    return call(server, messages.ELASTIC_LEAVE, process=process, key=process, **fields)


def made_up(number: int, job: str) -> dict:
    """A later generation that no process has formed, as requests have named it."""
    members = [{"process": STRANGER, "name": "worker 7", "address": "127.0.0.1:1"}]
    fields = {"number": number, "members": members, "newcomers": [], "job": job, "salt": "s"}
    packed = base64.b64encode(zlib.compress(json.dumps(fields).encode())).decode()
    return {"reference": packed, "number": number, "mark": "m", "highest": number}


def flood(server: str, count: int, description: dict) -> None:
    """Makes `count` calls of each kind, each of other processes, and with 60 KB: 64 are allowed."""
    text = "x" * 29_000
    stranger = {"name": "worker 7", "address": "127.0.0.1:1"}
    with grpc.insecure_channel(server, options=[("grpc.enable_http_proxy", 0)]) as channel:
        for number in range(count):
            for method, fields in (
                (messages.ELASTIC_LEAVE, {"process": f"{number}{text}", "key": str(number)}),
                (messages.ELASTIC_FORM, {"process": f"{number:032x}", **stranger, "key": text}),
                (messages.ELASTIC_FOUND, {"process": f"{number:032x}", **stranger, "key": text}),
            ):
                body = {
                    **{"wait": 0.0, "fingerprint": "", "to": ""},
                    **{"reference": "", "call": 0, "number": 0, "mark": "", "holds_state": False},
                    **{
                        "highest": 0,
                        "dead": [],
                        "nonce": "",
                        "proof": "",
                        "start": 2,
                        "least": 2,
                        "patience": 0.0,
                        **fields,
                    },
                    "description": {**description, "more": text},
                }
                with contextlib.suppress(grpc.RpcError):
                    channel.unary_unary(method.path)(json.dumps(body).encode(), timeout=10)


def proof(key: str, kind: str, body: bytes) -> str:
    """The proof of a caller that knows `key`, made by hand."""
    parts = [part.encode() for part in ("proof", kind)]
    text = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.new(key.encode(), text + body, hashlib.sha256).hexdigest()
