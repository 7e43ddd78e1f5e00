"""Long requests: the client cuts them into pieces, and the server joins them.

    caller                                   server
      |--- Piece(id, 0 of 150,000) ---------->|
      |<-- received --------------------------|
      |--- Piece(id, 60,000 of 150,000) ----->|
      |<-- received --------------------------|
      |--- Piece(id, 120,000 of 150,000) ---->|   joined: the request's handler is called,
      |<-- its answer ------------------------|   and may hold the call

Each piece is a call of its own, with all limits of one. A server takes pieces only from callers
that know the job, and for methods that expect long requests (`Service.method`). It keeps a limited
number of bytes of each connection, and of all together, until the requests are answered.
"""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Callable, Iterator

from tfdist.control.connections import Peer
from tfdist.control.encoding import MessageError
from tfdist.control.service import TRANSPORT

MAX_REQUEST_BYTES = 64 * 1024  # of one call
PIECE_BYTES = 60 * 1024
# Of a long request, which also bounds the incomplete ones of a connection.
MAX_LONG_BYTES = 12 << 20
# Of all incomplete requests and requests being answered, besides a long one for each rank.
_MAX_KEPT = 48 << 20
_MAX_IDS_OF_A_PEER = 8
_MAX_ID = 64  # characters
# Seconds after its last piece in which an incomplete request is kept.
_LIFETIME = 60.0


@dataclasses.dataclass(frozen=True)
class PieceRequest:
    """A piece of a request that is too long for one call.

    Attributes:
      fingerprint: of the training addresses that the caller knows.
      id: random, of the long request.
      path: of the method that is called.
      offset: the number of bytes before this piece.
      size: of the long request, in bytes.
      content: the piece.
    """

    fingerprint: str
    id: str
    path: str
    offset: int
    size: int
    content: bytes


class MissingPiecesError(MessageError):
    """The earlier pieces of a long request have not come, or are forgotten."""


PIECE = TRANSPORT.method(PieceRequest)


def pieces_of(body: bytes, path: str, fingerprint: str) -> Iterator[PieceRequest]:
    """Yields the pieces of a long request, in order.

    Args:
      body: the encoded request.
      path: of its method.
      fingerprint: of the training addresses that the caller knows.
    """
    name = secrets.token_hex(16)
    for offset in range(0, len(body), PIECE_BYTES):
        content = body[offset : offset + PIECE_BYTES]
        yield PieceRequest(fingerprint, name, path, offset, len(body), content)


@dataclasses.dataclass
class _Incomplete:
    """A long request of which pieces have come.

    Attributes:
      path, size: as in its first piece.
      content: the pieces, joined.
      at: time at which the last one has come.
    """

    path: str
    size: int
    content: bytearray
    at: float

    @property
    def cost(self) -> int:
        """Its bytes; the smallest one counts as a piece."""
        return max(len(self.content), PIECE_BYTES)


class LongRequests:
    """The long requests that come to a server. Not thread-safe.

    Args:
      ranks: the number of the job's ranks, which may all send one at a time.
      clock: returns the time, in seconds.
    """

    def __init__(self, ranks: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_kept = _MAX_KEPT + ranks * MAX_LONG_BYTES
        self._clock = clock
        self._incomplete: dict[tuple[Peer, str], _Incomplete] = {}
        self._answering = 0  # bytes

    def add(self, peer: Peer, piece: PieceRequest) -> bytes | None:
        """Adds a piece; returns the request once it is complete. Call `end` when it is answered.

        Args:
          peer: the connection on which the piece has come.
          piece: the piece.

        Raises:
          MissingPiecesError: its earlier pieces are not here.
          MessageError: it is no next piece of a request, or there is no room for it.
        """
        now = self._clock()
        key = (peer, piece.id)
        for other in [k for k, x in self._incomplete.items() if now - x.at > _LIFETIME]:
            del self._incomplete[other]
        if piece.offset == 0:
            self._incomplete.pop(key, None)
        elif key not in self._incomplete:
            raise MissingPiecesError(
                f"expected the piece at byte 0 of {piece.size:,}, received byte {piece.offset:,}"
            )
        known = self._incomplete.get(key) or _Incomplete(piece.path, piece.size, bytearray(), now)
        try:
            self._check(piece, known)
            self._check_room(peer, key, known, piece)
        except MessageError:
            self._incomplete.pop(key, None)
            raise
        known.content += piece.content
        known.at = now
        if len(known.content) < known.size:
            self._incomplete[key] = known
            return None
        self._incomplete.pop(key, None)
        self._answering += known.size
        return bytes(known.content)

    def end(self, request: bytes) -> None:
        """Records that a request which `add` has returned was answered, or never will be."""
        self._answering -= len(request)

    def _check(self, piece: PieceRequest, known: _Incomplete) -> None:
        if not 0 < len(piece.id) <= _MAX_ID:
            raise MessageError(f"expected an id of at most {_MAX_ID} characters")
        if not 0 < piece.size <= MAX_LONG_BYTES:
            raise MessageError(
                f"expected a long request of at most {MAX_LONG_BYTES:,} bytes, has {piece.size:,}"
            )
        if (piece.path, piece.size) != (known.path, known.size):
            raise MessageError("expected all pieces of a long request to name one method and size")
        begin, end = len(known.content), piece.offset + len(piece.content)
        if piece.offset != begin or not begin < end <= piece.size:
            raise MessageError(
                f"expected the piece at byte {begin:,} of {piece.size:,}, received bytes "
                f"{piece.offset:,} to {end:,}"
            )

    def _check_room(
        self, peer: Peer, key: tuple[Peer, str], known: _Incomplete, piece: PieceRequest
    ) -> None:
        others = {k: x.cost for k, x in self._incomplete.items() if k != key}
        own = [cost for (of, _), cost in others.items() if of == peer]
        if len(own) >= _MAX_IDS_OF_A_PEER:
            raise MessageError(
                f"expected at most {_MAX_IDS_OF_A_PEER} long requests on a connection at a time"
            )
        needed = max(len(known.content) + len(piece.content), PIECE_BYTES)
        for who, kept, limit in (
            ("a connection", sum(own), MAX_LONG_BYTES),
            ("all callers", self._answering + sum(others.values()), self._max_kept),
        ):
            if kept + needed > limit:
                raise MessageError(
                    f"expected at most {limit:,} bytes of long requests of {who}, received "
                    f"{kept + needed:,}"
                )
