"""The encoding of messages: sent messages come back, and everything else is refused."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from tfdist.control import encoding
from tfdist.control.encoding import MessageError


@dataclasses.dataclass(frozen=True)
class Lease:
    id: int
    name: str


@dataclasses.dataclass(frozen=True)
class Everything:
    count: int
    seconds: float
    text: str
    flag: bool
    content: bytes
    numbers: list[int]
    names: tuple[str, ...]
    by_name: dict[str, float]
    maybe: str | None
    lease: Lease
    leases: list[Lease]
    blobs: dict[str, bytes]


RIGHT = Everything(
    count=-7,
    seconds=2.5,
    text='é\0 "quoted" \\ \n',
    flag=True,
    content=b"\0\xff{}",
    numbers=[1, 2, 2**70],
    names=("a", "b"),
    by_name={"x": 0.5, "y": 3},
    maybe=None,
    lease=Lease(1, "one"),
    leases=[Lease(2, "two"), Lease(3, "three")],
    blobs={"first": b"1", "empty": b"", "last": b"\0\0"},
)
# The same as JSON, with the lengths of its bytes; and these bytes.
FIELDS: dict[str, Any] = {
    **dataclasses.asdict(RIGHT),
    "content": {"": 4},
    "blobs": {"first": {"": 1}, "empty": {"": 0}, "last": {"": 2}},
}
BYTES = b"\0\xff{}" + b"1" + b"\0\0"


def body(attached: bytes = BYTES, **changes: Any) -> bytes:
    return json.dumps(FIELDS | changes).encode() + b"\0" + attached


def refusal(text: bytes, kind: type = Everything) -> str:
    with pytest.raises(MessageError) as caught:
        encoding.decode(kind, text)
    return str(caught.value)


def test_a_message_comes_back_equal() -> None:
    assert encoding.decode(Everything, encoding.encode(RIGHT)) == RIGHT
    given = dataclasses.replace(RIGHT, maybe="text", numbers=[], leases=[])
    assert encoding.decode(Everything, encoding.encode(given)) == given


def test_a_message_is_json_and_the_bytes_behind_it() -> None:
    assert encoding.decode(Everything, body()) == RIGHT
    text, separator, attached = encoding.encode(RIGHT).partition(b"\0")
    assert (json.loads(text), separator, attached) == (
        json.loads(json.dumps(FIELDS)),
        b"\0",
        BYTES,
    )


def test_a_message_without_bytes_is_json_alone() -> None:
    assert encoding.encode(Lease(1, "é")) == '{"id": 1, "name": "é"}'.encode()


def test_an_answer_is_an_object_without_a_class() -> None:
    answer = {"status": "here", "bytes": b"\0\1", "leases": [Lease(1, "a")], "size": 2}
    received = encoding.decode_object(encoding.encode(answer))
    assert received == answer | {"leases": [{"id": 1, "name": "a"}]}


@pytest.mark.parametrize(
    ("field", "value", "expected", "shown"),
    [
        ("count", 1.0, "count to be int", "1.0"),
        ("count", True, "count to be int", "True"),
        ("count", None, "count to be int", "None"),
        ("seconds", "1", "seconds to be float", "'1'"),
        ("seconds", False, "seconds to be float", "False"),
        ("text", 1, "text to be str", "1"),
        ("flag", 1, "flag to be bool", "1"),
        ("content", "text", "content to be bytes", "'text'"),
        ("numbers", "12", "numbers to be list[int]", "'12'"),
        ("numbers", [1, "2"], "numbers[1] to be int", "'2'"),
        ("numbers", [1, None], "numbers[1] to be int", "None"),
        ("names", {"a": "b"}, "names to be tuple[str, ...]", "{'a': 'b'}"),
        ("names", ["a", 1], "names[1] to be str", "1"),
        ("by_name", [1.0], "by_name to be dict[str, float]", "[1.0]"),
        ("by_name", {"x": "y"}, "by_name['x'] to be float", "'y'"),
        ("maybe", 1, "maybe to be str | None", "1"),
        ("lease", [1, "one"], "lease to be Lease", "[1, 'one']"),
        ("lease", {"id": "1", "name": "one"}, "lease.id to be int", "'1'"),
        ("lease", {"id": 1}, "lease.name to be str", "None"),
        ("leases", [{"id": 1, "name": 2}], "leases[0].name to be str", "2"),
        ("leases", {"id": 1, "name": "a"}, "leases to be list[Lease]", "{'id': 1, 'name': 'a'}"),
    ],
)
def test_a_field_of_another_type_is_refused(
    field: str, value: Any, expected: str, shown: str
) -> None:
    attached = BYTES if field not in ("content", "blobs") else BYTES[4:]
    text = refusal(body(attached, **{field: value}))
    assert text == f"Everything: expected {expected}, received {shown}"


@pytest.mark.parametrize("field", sorted(FIELDS.keys() - {"maybe"}))
def test_a_field_that_is_missing_is_refused(field: str) -> None:
    fields = {name: value for name, value in FIELDS.items() if name != field}
    attached = {"content": BYTES[4:], "blobs": BYTES[:4]}.get(field, BYTES)
    text = refusal(json.dumps(fields).encode() + b"\0" + attached)
    assert text.startswith(f"Everything: expected {field} to be ")
    assert text.endswith("received None")


@pytest.mark.parametrize("value", ["1e999", "-1e999", "NaN", "Infinity", "9" * 400])
@pytest.mark.parametrize("place", ["seconds", "by_name"])
def test_a_number_that_no_float_holds_is_refused(value: str, place: str) -> None:
    written = value if place == "seconds" else f'{{"x": {value}}}'
    fields = json.dumps({k: v for k, v in FIELDS.items() if k != place})
    text = refusal(f'{fields[:-1]}, "{place}": {written}}}'.encode() + b"\0" + BYTES)
    shown = "seconds" if place == "seconds" else "by_name['x']"
    assert text.startswith(f"Everything: expected {shown} to be a finite number, received ")
    assert len(text) < 200


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"no JSON",
        b"{",
        b"\xff",
        b"[" * encoding.MAX_DEPTH,
        b'{"a": "\\',
        b'{"count": ' + b"9" * 5000 + b"}",
    ],
)
def test_what_is_no_json_is_refused(text: bytes) -> None:
    assert refusal(text) == f"expected a JSON object, received {len(text)} bytes of no JSON"


def test_json_that_is_no_object_is_refused() -> None:
    assert refusal(b"[1]") == "expected a JSON object, received list"
    assert refusal(b'"text"') == "expected a JSON object, received str"
    assert refusal(b'{"": 1}\0a') == "expected a JSON object, received bytes"


def test_a_message_nested_too_deeply_is_refused() -> None:
    deepest = encoding.MAX_DEPTH
    encoding.decode_object(b'{"a": ' + b"[" * (deepest - 1) + b"]" * (deepest - 1) + b"}")
    text = b'{"a": ' + b"[" * deepest + b"]" * deepest + b"}"
    assert refusal(text) == (
        f"expected a JSON object, received {len(text)} bytes with more than {deepest} levels"
    )
    for text in (b"[" * 100_000, b'{"a":' * 100_000):
        assert refusal(text).endswith(f"bytes with more than {deepest} levels")
    # Brackets in a text are no levels.
    encoding.decode_object(b'{"a": "' + b"[" * 1000 + b'", "b": "\\"[[[[\\\\"}')


def test_a_request_of_too_many_values_is_refused() -> None:
    """Many small ones would cost far more memory than the request has bytes."""
    limit = encoding.MAX_ITEMS
    for value in (b"[]", b"{}", b"0", b'""', b'{"a": 0}'):
        text = b'{"numbers": [' + b",".join([value] * limit) + b"]}"
        assert refusal(text) == (
            f"expected a JSON object, received {len(text)} bytes with more than {limit:,} values"
        )
        assert len(encoding.decode_object(text)["numbers"]) == limit  # as an answer
    # In a text they are none.
    long = json.dumps(['"', ",", {}] * limit)
    lease = Lease(1, long)
    assert encoding.decode(Lease, encoding.encode(lease)) == lease


def test_half_of_a_surrogate_pair_is_refused() -> None:
    for text in (b'{"text": "\\ud800"}', b'{"\\udc00": 1}'):
        assert refusal(text) == (
            f"expected a JSON object, received {len(text)} bytes with half of a surrogate pair"
        )
    assert refusal(encoding.encode({"text": "\ud800"})).endswith("of no JSON")
    assert encoding.decode_object(b'{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}


@pytest.mark.parametrize(
    ("text", "attached"),
    [
        (b'{"a": {"": 3}}', b"12"),  # too few
        (b'{"a": {"": 1}}', b"12"),  # too many
        (b'{"a": {"": 1}, "b": {"": 2}}', b"12"),
        (b'{"a": {"": -1}}', b""),
        (b'{"a": 1}', b"1"),  # none of the fields has them
        (b'{"a": {"": 99999999999999999999}}', b""),
    ],
)
def test_bytes_of_another_number_are_refused(text: bytes, attached: bytes) -> None:
    whole = text + b"\0" + attached
    assert refusal(whole) == (
        f"expected a JSON object and the bytes that it announces, received {len(whole)} bytes"
    )


def test_an_empty_name_announces_bytes_only_with_a_whole_number() -> None:
    for value in (b"true", b"1.0", b'"a"', b"null"):
        assert encoding.decode_object(b'{"a": {"": %b}}' % value)["a"][""] != b""


def test_a_refusal_shows_little_of_a_large_value() -> None:
    for value in ("x" * 50_000, list(range(10_000)), {str(i): i for i in range(10_000)}):
        assert len(refusal(body(count=value))) < 200


def test_a_class_with_a_type_that_no_message_has_is_our_own_error() -> None:
    @dataclasses.dataclass
    class Wrong:
        numbers: set

    with pytest.raises(TypeError, match="numbers"):
        encoding.decode(Wrong, b"{}")
