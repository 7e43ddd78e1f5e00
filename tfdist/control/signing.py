"""Mutual authentication of tasks by a shared secret, which itself is never sent.

Each side contributes a fresh value to every call, so that a recorded message is useless in another
call, for another task or in another job:

```
    caller                                    server
      |--- Challenge ----------------------->|
      |<-- challenge ------------------------|   good for one request, for a minute, here only
      |--- nonce, signature(request) ------->|   HMAC-SHA256 (RFC 2104) with the secret, over
      |<-- next challenge, signature(answer) |   method, challenge, nonce, next challenge and body
```

An answer brings a challenge for the caller's next request, which then needs no call for one.
Nothing is encrypted. Without a secret nothing is signed, and signed requests are refused: a secret
on one side only is a mistake that should show at once.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
import time
from collections import OrderedDict, deque

CHALLENGE_LIFETIME = 60.0  # s
# A caller that has not noticed the end of an earlier process is refused so, and calls again.
OF_ANOTHER_PROCESS = "the request was made for another task, or an earlier process of this one"
_CHALLENGE, _NONCE, _SIGNATURE = "tfdist-challenge", "tfdist-nonce", "tfdist-signature"
_NEXT = "tfdist-next-challenge"
# Next challenges are kept half as long as they are good, and as many as a process has threads.
_MAX_KEPT = 16
_NONCE_FORM = re.compile("[0-9a-f]{32}")
_KEY_BYTES = 32

Metadata = tuple[tuple[str, str], ...]


def data_key(secret: bytes | None, *context: str) -> bytes:
    """Returns the key of a job's data connections.

    Args:
      secret: the shared secret; without one the key is as public as the context.
      context: texts that distinguish this key, such as a generation and a random salt; may be
        public.

    Returns:
      32 bytes.
    """
    return _mac(secret or b"", "data key", *context, body=b"").digest()


def proof(key: str, *context: str, body: bytes) -> str:
    """Returns a keyed hash that shows knowledge of `key`, and from which it cannot be derived.

    Args:
      key: a random text that both sides know.
      context: texts that distinguish this proof from others with the same key.
      body: is proven to be the key's owner's.
    """
    return _mac(key.encode(), "proof", *context, body=body).hexdigest()


def metrics_token(secret: bytes) -> str:
    """Returns the token with which the tasks of a job let a program read their metrics.

    The secret cannot be derived from it.

    Args:
      secret: the shared secret.
    """
    return _mac(secret, "metrics token", body=b"").hexdigest()


def dashboard_token(secret: bytes) -> str:
    """Returns the token with which `tfdist dashboard` shows a job's page to a browser.

    The secret cannot be derived from it, nor can the metrics' token: the browser's history keeps
    it.

    Args:
      secret: the job's.
    """
    return _mac(secret, "dashboard token", body=b"").hexdigest()


class Challenges:
    """The challenges of one server: each is valid for one request, and expires.

    Unauthenticated clients cost no memory: a challenge contains its own time and a keyed hash of
    it. Only challenges that came back with a valid signature are remembered, until they expire.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(_KEY_BYTES)
        self._lock = threading.Lock()
        # The time of each use, in order. A plain dict would look for its first entry among all that
        # were deleted: a busy server would stand still when many expire.
        self._used: OrderedDict[str, float] = OrderedDict()

    def new(self) -> str:
        """Returns a new, unique challenge."""
        text = f"{int(time.monotonic() * 1000):x}.{secrets.token_hex(16)}"
        return f"{text}.{self._mark(text)}"

    def use(self, challenge: str) -> bool:
        """Uses a challenge; returns whether it is this server's, not expired and not used."""
        if not self.made(challenge):
            return False
        now = time.monotonic()
        if now - int(challenge.partition(".")[0], 16) / 1000 > CHALLENGE_LIFETIME:
            return False
        with self._lock:
            while self._used and now - next(iter(self._used.values())) > CHALLENGE_LIFETIME:
                self._used.popitem(last=False)
            if challenge in self._used:
                return False
            self._used[challenge] = now
        return True

    def made(self, challenge: str) -> bool:
        """Whether a challenge is this server's, perhaps expired or used."""
        text, _, mark = challenge.rpartition(".")
        return same(mark, self._mark(text))

    def _mark(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()


class Signer:
    """Signs messages with the shared secret, and verifies the signatures of other tasks.

    Args:
      secret: the shared secret, or None.
    """

    def __init__(self, secret: bytes | None) -> None:
        self._secret = secret
        self._challenges = Challenges()
        self._kept: deque[tuple[float, str]] = deque(maxlen=_MAX_KEPT)  # with the times of arrival

    @property
    def has_secret(self) -> bool:
        """Whether messages are signed."""
        return self._secret is not None

    def new_challenge(self) -> str:
        """Returns a challenge for a client's next request; empty without a secret."""
        return self._challenges.new() if self.has_secret else ""

    def kept_challenge(self) -> str | None:
        """Takes a challenge that an answer has brought; `None` if there is none that is good."""
        while self._kept:
            try:
                since, challenge = self._kept.popleft()
            except IndexError:  # another thread has taken the last one
                break
            if time.monotonic() - since < CHALLENGE_LIFETIME / 2:
                return challenge
        return None

    def forget_challenges(self) -> None:
        """Forgets what answers have brought: the server may be another one from now on."""
        self._kept.clear()

    def sign_request(self, method: str, challenge: str, body: bytes) -> Metadata:
        """Returns the metadata of a request; `challenge` is the server's."""
        if not self.has_secret:
            return ()
        nonce = secrets.token_hex(16)
        signature = self._sign("request", method, challenge, nonce, body)
        return ((_CHALLENGE, challenge), (_NONCE, nonce), (_SIGNATURE, signature))

    def problem_with_request(
        self, method: str, metadata: Metadata | None, body: bytes
    ) -> str | None:
        """Returns why a request is refused; None, once, if it is authentic."""
        values = dict(metadata or ())
        challenge, nonce, signature = map(values.get, (_CHALLENGE, _NONCE, _SIGNATURE))
        if not self.has_secret:
            return (
                None if signature is None else "the caller has a shared secret, this task has none"
            )
        if not (
            isinstance(challenge, str) and isinstance(nonce, str) and isinstance(signature, str)
        ):
            return "this task has a shared secret, the caller sent no proof of one"
        if not _NONCE_FORM.fullmatch(nonce) or not same(
            signature, self._sign("request", method, challenge, nonce, body)
        ):
            return "the two tasks have different shared secrets"
        if not self._challenges.use(challenge):
            if not self._challenges.made(challenge):
                return OF_ANOTHER_PROCESS
            return "the request was made for another call, or more than a minute ago"
        return None

    def sign_answer(self, method: str, request_metadata: Metadata, body: bytes) -> Metadata:
        """Returns the metadata of the answer to an authentic request."""
        if not self.has_secret:
            return ()
        values, following = dict(request_metadata), self.new_challenge()
        signature = self._sign(
            "answer", method, values[_CHALLENGE], values[_NONCE], body, following
        )
        return ((_SIGNATURE, signature), (_NEXT, following))

    def problem_with_answer(
        self, method: str, request_metadata: Metadata, metadata: Metadata | None, body: bytes
    ) -> str | None:
        """Returns why an answer is refused, or None if it is authentic; keeps its challenge."""
        if not self.has_secret:
            return None
        values = dict(metadata or ())
        signature, following = values.get(_SIGNATURE), values.get(_NEXT)
        if not isinstance(signature, str) or not isinstance(following, str):
            return "the caller has a shared secret, the answer carries no proof of one"
        request = dict(request_metadata)
        challenge, nonce = request[_CHALLENGE], request[_NONCE]
        if not same(signature, self._sign("answer", method, challenge, nonce, body, following)):
            return "the two tasks have different shared secrets"
        self._kept.append((time.monotonic(), following))
        return None

    def _sign(
        self,
        direction: str,
        method: str,
        challenge: str,
        nonce: str,
        body: bytes,
        following: str = "",
    ) -> str:
        assert self._secret is not None
        parts = (direction, method, challenge, nonce, following)
        return _mac(self._secret, *parts, body=body).hexdigest()


def _mac(key: bytes, *parts: str, body: bytes) -> hmac.HMAC:
    # A length precedes each part, so that different lists of parts give different texts.
    text = b"".join(len(part.encode()).to_bytes(4, "big") + part.encode() for part in parts)
    return hmac.new(key, text + body, hashlib.sha256)


def same(received: str, expected: str) -> bool:
    """Whether two texts are equal, in a time that does not tell where they differ."""
    # Bytes, because compare_digest refuses text that is not ASCII.
    return hmac.compare_digest(received.encode(), expected.encode())
