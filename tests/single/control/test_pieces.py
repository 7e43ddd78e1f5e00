"""Long requests: their pieces are joined, and lies about them cost a server little."""

from __future__ import annotations

import dataclasses

import pytest

from tfdist.control import encoding
from tfdist.control.encoding import MessageError
from tfdist.control.pieces import (
    MAX_LONG_BYTES,
    MAX_REQUEST_BYTES,
    PIECE_BYTES,
    LongRequests,
    MissingPiecesError,
    PieceRequest,
    pieces_of,
)

PEER = ("10.0.0.1", 5000)
BODY = bytes(range(256)) * 600  # 153,600 bytes


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def piece(offset: int, size: int, content: bytes, **changes: str) -> PieceRequest:
    right = PieceRequest("f", "one", "/tfdist.Tasks.1/TaskOpen", offset, size, content)
    return dataclasses.replace(right, **changes)


def refusal(server: LongRequests, wrong: PieceRequest, peer: tuple[str, int] = PEER) -> str:
    with pytest.raises(MessageError) as caught:
        server.add(peer, wrong)
    return str(caught.value)


@pytest.mark.parametrize("size", [1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES, len(BODY)])
def test_pieces_are_joined(size: int) -> None:
    server, body = LongRequests(0), BODY[:size]
    *first, last = pieces_of(body, "/path", "f")
    assert [server.add(PEER, each) for each in first] == [None] * len(first)
    assert server.add(PEER, last) == body


def test_each_piece_fits_into_one_call() -> None:
    for each in pieces_of(BODY, f"/tfdist.{'x' * 40}.123456/{'y' * 40}", "f" * 16):
        assert len(encoding.encode(each)) <= MAX_REQUEST_BYTES


def test_requests_of_one_connection_may_mix() -> None:
    server = LongRequests(0)
    bodies = BODY[:100_000], BODY[7:130_007]
    sent = [list(pieces_of(body, "/path", "f")) for body in bodies]
    assert server.add(PEER, sent[0][0]) is None
    assert server.add(PEER, sent[1][0]) is None
    assert server.add(PEER, sent[0][1]) == bodies[0]
    assert server.add(PEER, sent[1][1]) is None
    assert server.add(PEER, sent[1][2]) == bodies[1]


def test_a_request_that_begins_again_is_joined_from_there() -> None:
    server = LongRequests(0)
    server.add(PEER, piece(0, 4, b"xy"))
    server.add(PEER, piece(0, 4, b"ab"))
    assert server.add(PEER, piece(2, 4, b"cd")) == b"abcd"


def test_pieces_of_another_connection_are_not_joined() -> None:
    server = LongRequests(0)
    server.add(PEER, piece(0, 4, b"ab"))
    with pytest.raises(MissingPiecesError, match="expected the piece at byte 0 of 4"):
        server.add(("10.0.0.2", 1), piece(2, 4, b"cd"))
    assert server.add(PEER, piece(2, 4, b"cd")) == b"abcd"


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (piece(1, 4, b"b"), "expected the piece at byte 2 of 4, received bytes 1 to 2"),
        (piece(3, 4, b"d"), "expected the piece at byte 2 of 4, received bytes 3 to 4"),
        (piece(2, 4, b"cde"), "expected the piece at byte 2 of 4, received bytes 2 to 5"),
        (piece(2, 4, b""), "expected the piece at byte 2 of 4, received bytes 2 to 2"),
        (piece(-1, 4, b"abc"), "expected the piece at byte 2 of 4, received bytes -1 to 2"),
        (piece(2, 5, b"cd"), "expected all pieces of a long request to name one method and size"),
        (
            piece(2, 4, b"cd", path="/other"),
            "expected all pieces of a long request to name one method and size",
        ),
        (
            piece(2, MAX_LONG_BYTES + 1, b"cd"),
            "expected a long request of at most 12,582,912 bytes, has 12,582,913",
        ),
    ],
)
def test_a_wrong_piece_is_refused_and_ends_its_request(wrong: PieceRequest, expected: str) -> None:
    server = LongRequests(0)
    server.add(PEER, piece(0, 4, b"ab"))
    assert refusal(server, wrong) == expected
    assert "at byte 0" in refusal(server, piece(2, 4, b"cd"))


def test_a_size_or_an_id_that_none_has_is_refused() -> None:
    assert "has 0" in refusal(LongRequests(0), piece(0, 0, b""))
    assert "has -1" in refusal(LongRequests(0), piece(0, -1, b"a"))
    for name in ("", "x" * 65):
        assert "expected an id" in refusal(LongRequests(0), piece(0, 2, b"a", id=name))


def test_a_connection_begins_a_limited_number_of_requests() -> None:
    server = LongRequests(0)
    for number in range(8):
        assert server.add(PEER, piece(0, 2, b"a", id=str(number))) is None
    assert "at most 8 long requests" in refusal(server, piece(0, 2, b"a", id="8"))
    assert server.add(PEER, piece(1, 2, b"b", id="0")) == b"ab"
    assert server.add(PEER, piece(0, 2, b"a", id="8")) is None


def fill(server: LongRequests, peer: tuple[str, int], name: str, upto: int) -> None:
    for offset in range(0, upto, PIECE_BYTES):
        content = bytes(min(PIECE_BYTES, upto - offset))
        assert server.add(peer, piece(offset, MAX_LONG_BYTES, content, id=name)) is None


def test_a_connection_has_a_limited_number_of_bytes() -> None:
    server = LongRequests(0)
    half = MAX_LONG_BYTES // 2
    fill(server, PEER, "one", half)
    fill(server, PEER, "two", half)
    text = refusal(server, piece(half, MAX_LONG_BYTES, b"x", id="two"))
    assert text == (
        "expected at most 12,582,912 bytes of long requests of a connection, received 12,582,913"
    )


def test_all_callers_have_a_limited_number_of_bytes_until_they_are_silent() -> None:
    clock = Clock()
    server = LongRequests(0, clock)
    for number in range(4):
        fill(server, ("10.0.0.9", number), "one", MAX_LONG_BYTES - 1)
    assert "50,331,648 bytes of long requests of all callers" in refusal(server, piece(0, 2, b"a"))
    clock.now += 61
    assert server.add(PEER, piece(0, 2, b"a")) is None


def test_a_piece_of_one_byte_counts_as_a_whole_one() -> None:
    server = LongRequests(0)
    added = 0
    with pytest.raises(MessageError):
        for added in range(2000):
            server.add(("10.0.0.9", added // 8), piece(0, 2, b"a", id=str(added)))
    assert added == (48 << 20) // PIECE_BYTES


def test_requests_that_are_being_answered_count() -> None:
    server = LongRequests(ranks=1)
    body = bytes(MAX_LONG_BYTES)
    joined = []
    for number in range(5):
        for each in pieces_of(body, "/path", "f"):
            answer = server.add(("10.0.0.9", number), each)
        assert answer == body
        joined.append(answer)
    assert "62,914,560 bytes of long requests of all callers" in refusal(server, piece(0, 2, b"a"))
    server.end(joined.pop())
    assert server.add(PEER, piece(0, 2, b"a")) is None
