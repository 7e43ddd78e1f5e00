"""Signatures of calls: `tfdist/control/signing.py`.

Input: the metadata of a request or an answer as JSON, or right metadata with changes. No changed
request or answer may pass, a right one passes once, and nothing raises.
"""

import json

from tfdist.control.signing import Signer

_SECRET, _METHOD, _BODY = b"secret", "/tfdist.Control/Join", b"body"
_SERVER, _CLIENT = Signer(_SECRET), Signer(_SECRET)
_UNSIGNED = Signer(None)


def run(data: bytes) -> None:
    text = data[1:].decode("utf-8", "surrogateescape")
    if data[:1] and data[0] % 2:
        _any_metadata(text)
    else:
        _changed(text)


def _any_metadata(text: str) -> None:
    try:
        found = json.loads(text)
        metadata = tuple((str(key), value) for key, value in found)
    except (ValueError, TypeError, RecursionError):
        return
    # gRPC hands over texts that UTF-8 can encode, or bytes.
    if not all(isinstance(value, str | bytes) for _, value in metadata):
        return
    if any("\ud800" <= letter <= "\udfff" for pair in metadata for part in pair for letter in part):
        return
    assert _SERVER.problem_with_request(_METHOD, metadata, _BODY) is not None
    _UNSIGNED.problem_with_request(_METHOD, metadata, _BODY)
    asked = _CLIENT.sign_request(_METHOD, "challenge", _BODY)
    assert _CLIENT.problem_with_answer(_METHOD, asked, metadata, _BODY) is not None


def _changed(text: str) -> None:
    """A right request, of which one value is exchanged for the text."""
    request = dict(_CLIENT.sign_request(_METHOD, _SERVER.new_challenge(), _BODY))
    text = "".join(letter for letter in text if not "\ud800" <= letter <= "\udfff")
    for name in request:
        if request[name] == text:
            continue
        changed = tuple({**request, name: text}.items())
        assert _SERVER.problem_with_request(_METHOD, changed, _BODY) is not None
        changed = tuple({**request, name: request[name] + text}.items())
        if text:
            assert _SERVER.problem_with_request(_METHOD, changed, _BODY) is not None
    body = text.encode()
    if body != _BODY:
        assert _SERVER.problem_with_request(_METHOD, tuple(request.items()), body) is not None
    right = tuple(request.items())
    assert _SERVER.problem_with_request(_METHOD, right, _BODY) is None
    assert _SERVER.problem_with_request(_METHOD, right, _BODY) is not None
    answer = dict(_SERVER.sign_answer(_METHOD, right, _BODY))
    for name in answer:
        if answer[name] != text:
            changed = tuple({**answer, name: text}.items())
            assert _CLIENT.problem_with_answer(_METHOD, right, changed, _BODY) is not None
    assert _CLIENT.problem_with_answer(_METHOD, right, tuple(answer.items()), _BODY) is None
    _CLIENT.forget_challenges()


def seeds() -> list[bytes]:
    other = Signer(b"another secret")
    request = other.sign_request(_METHOD, other.new_challenge(), _BODY)
    answer = other.sign_answer(_METHOD, request, _BODY)
    return [
        b"\0text",
        b"\0" + bytes(range(255)),
        b"\1" + json.dumps(request).encode(),
        b"\1" + json.dumps(answer).encode(),
        b'\1[["tfdist-signature", ""], ["tfdist-nonce", "0"]]',
    ]
