"""Records of calls: kept once, in memory or in a file, and read by newcomers in pieces."""

from __future__ import annotations

import random
import tracemalloc

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from tfdist.control.held_calls import ClientContext
from tfdist.elastic import record_exchange
from tfdist.elastic import records as records_module
from tfdist.elastic.protocol import messages
from tfdist.elastic.record_exchange import RecordServer
from tfdist.elastic.records import CallRecords, Record, Value, differences, digest_of, failed
from tfdist.keras import random_state


def _request(call=0, part="", offset=0, fingerprint="f", process="p"):
    return messages.ElasticRecordRequest(fingerprint, process, call, part, offset, wait=0.0)


def _server(records):
    server = RecordServer(records, lambda request: request.fingerprint == "f")
    return lambda **fields: server.answer(_request(**fields), ClientContext())


def test_what_did_not_change_is_kept_once():
    records = CallRecords(1 << 20)
    first = records.keep(b"kernel" * 1000)
    assert records.keep(bytearray(b"kernel" * 1000)) == first == digest_of(b"kernel" * 1000)
    assert records.bytes_in_memory == 6000
    assert records.read(first, 6, 6) == b"kernel" and records.size(first) == 6000


def test_what_exceeds_the_memory_is_kept_in_a_file():
    records = CallRecords(10)
    contents = [bytes([i]) * (i + 5) for i in range(8)] + [b""]
    digests = [records.keep(content) for content in contents]
    assert records.bytes_in_memory <= 10
    assert records.bytes_in_file + records.bytes_in_memory == sum(map(len, contents))
    for digest, content in zip(digests, contents, strict=True):
        assert records.read(digest) == content
        assert records.read(digest, 3, 4) == content[3:7]
        assert records.read(digest, 100) == b""


def test_a_record_is_the_same_after_its_way():
    value = Value("d", "float32", (2, 3))
    record = Record("fit", {"rows": "3"}, "r", (value, Value("d", "int64", ())), "")
    assert Record.from_bytes(record.to_bytes()) == record
    assert record.parts == ["r", "d"]
    for content in (b"", b"[]", b"{}", b'{"kind": "fit", "values": [1]}', b"\xff", b"1"):
        with pytest.raises(ValueError, match="expected a record of a call"):
            Record.from_bytes(content)


def test_what_differs_is_named():
    assert differences({"rows": "3"}, {"rows": "3"}) == []
    assert differences({"rows": "3"}, {"rows": "4"}) == ["'rows': expected '4', received '3'"]


def test_a_newcomer_reads_a_part_in_pieces(monkeypatch):
    monkeypatch.setattr(record_exchange, "_CHUNK", 10)
    records = CallRecords(1 << 20)
    answer = _server(records)
    assert answer(call=1) == {"status": "none"}
    content = bytes(range(25))
    records.add(Record("fit", rest=records.keep(content)))
    head = answer(call=1)["part"]
    assert answer(call=2)["status"] == answer(call=0)["status"] == "none"
    (digest,) = Record.from_bytes(records.read(head)).parts
    read = b""
    while len(read) < 25:
        found = answer(part=digest, offset=len(read))
        assert found["size"] == 25
        read += found["bytes"]
    assert read == content
    assert answer(part=digest, offset=25)["bytes"] == b""


def test_strangers_read_nothing():
    records = CallRecords(1 << 20)
    digest = records.keep(b"weights")
    records.add(Record("fit", rest=digest))
    answer = _server(records)
    for fields in ({"call": 1}, {"part": digest}):
        refused = answer(**fields, fingerprint="of another job")
        assert refused["status"] == "refused" and "TFDIST_SECRET" in refused["reason"]
    for offset in (-1, -(2**80)):
        assert answer(part=digest, offset=offset) == {"status": "gone"}
    assert answer(part=digest, offset=2**80)["bytes"] == b""
    assert answer(part="another") == {"status": "gone"}


@pytest.mark.parametrize("is_seeded", [False, True])
def test_random_generators_go_on_as_another_process_s(is_seeded):
    def drawn():
        return [random.random(), np.random.normal(), np.random.normal()] + (
            [float(tf.random.uniform([]))] if is_seeded else []
        )

    before = random_state.packed()
    try:
        random.seed(4)
        np.random.seed(5)
        if is_seeded:
            tf.random.set_seed(6)
        drawn()
        state = random_state.packed()
        expected = drawn()
        drawn()
        random_state.restore(state)
        # Another process has no kernel yet that has drawn from the same seed.
        context.context().clear_kernel_cache()
        assert drawn() == expected
    finally:
        random_state.restore(before)


@pytest.mark.parametrize("limit", [0, 10])
def test_members_go_on_when_the_disk_is_full(limit, monkeypatch):
    def fails(file, content, at):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(records_module, "_write_at", fails)
    records = CallRecords(limit)
    with pytest.raises(OSError, match="No space left"):
        records.keep(b"weights" * 10)
    records.add(Record("fit", rest="d"))
    records.add(failed("evaluate", "it has ended with ValueError"))
    assert len(records) == 2
    found = [Record.from_bytes(records.read(records.head(call))) for call in (1, 2)]
    assert found[0].kind == "fit" and "No space left" in found[0].failure
    assert found[1] == failed("evaluate", "it has ended with ValueError")


def test_a_call_costs_little_memory_beside_the_limit():
    records = CallRecords(0)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for call in range(2000):
            rest = records.keep(b"states %d" % call)
            records.add(Record("fit", {"rows": "3"}, rest))
        assert tracemalloc.get_traced_memory()[0] - before < 2000 * 2000
    finally:
        tracemalloc.stop()


def test_a_part_that_cannot_be_read_from_the_disk_is_gone(monkeypatch):
    def fails(*args):
        raise OSError(5, "Input/output error")

    records = CallRecords(0)
    digest = records.keep(b"weights")
    monkeypatch.setattr(records_module.os, "pread", fails)
    assert _server(records)(part=digest) == {"status": "gone"}


class _Clock:
    """Stands for the time that a server of records sees."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    found = _Clock()
    monkeypatch.setattr(record_exchange, "time", found)
    return found


def _server_of(calls):
    records = CallRecords(1 << 20)
    parts = [records.keep(b"weights %d" % call) for call in range(calls)]
    for part in parts:
        records.add(Record("fit", rest=part))
    server = RecordServer(records, lambda request: True)

    def ask(**fields):
        return server.answer(_request(**fields), ClientContext())

    return server, ask, parts, records


def test_a_member_waits_for_the_newcomer_that_is_behind(clock):
    """Another newcomer, which has read everything, does not hide it."""
    server, ask, parts, _ = _server_of(3)
    assert not server.is_read
    ask(call=1, process="a")
    ask(call=3, process="b")
    clock.now += 10
    assert server.is_read
    ask(part=parts[0], process="a")
    clock.now += 10
    assert server.is_read
    for call in (2, 3):
        ask(call=call, process="a")
    clock.now += 4
    assert not server.is_read


def test_a_member_waits_for_a_newcomer_that_asks_for_the_call_once_a_second(clock):
    server, ask, _, records = _server_of(1)
    assert ask(call=2) == {"status": "none"}
    assert not server.is_read  # it waits for a call, which will not come if the program ends
    records.add(Record("fit", rest=records.keep(b"more")))
    clock.now += 1.5
    assert server.is_read
    clock.now += 5
    assert not server.is_read


@pytest.mark.parametrize(
    "fields",
    [{"call": call} for call in (0, -1, -(2**80), 2, 3, 2**63)]
    + [{"part": "another"}, {"part": 0, "offset": 9}, {"part": 0, "offset": -1}],
)
def test_requests_that_get_nothing_keep_no_member(fields, clock):
    server, ask, parts, _ = _server_of(1)
    ask(call=1)
    if fields.get("part") == 0:
        fields = fields | {"part": parts[0]}
    for _ in range(10):
        clock.now += 1
        ask(**fields)
    assert not server.is_read


def test_one_that_asks_for_the_same_record_for_ever_keeps_no_member(clock):
    server, ask, _, _ = _server_of(2)
    for _ in range(20):
        ask(call=1)
        clock.now += 1
    assert not server.is_read


def test_made_up_newcomers_cost_little(clock):
    server, ask, _, _ = _server_of(2)
    for number in range(1000):
        ask(call=1, process=str(number))
    assert len(server._readers) <= 64 and server.is_read
