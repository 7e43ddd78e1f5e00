"""Hostile readers of the records of a real member: strangers, liars, and readers that never end."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from pathlib import Path

import grpc
import pytest

import tfdist
from support import raw_http2
from support.elastic.control_tasks import Background
from support.elastic.strangers import STRANGER, call
from support.processes.ranks import start_ranks
from tfdist.config.cluster import Cluster
from tfdist.config.elastic import Elastic
from tfdist.config.settings import Settings
from tfdist.control import callers
from tfdist.control.service import CHALLENGE
from tfdist.control.signing import Signer
from tfdist.elastic.membership import Membership
from tfdist.elastic.protocol import messages
from tfdist.elastic.records import CallRecords, Record, Value
from tfdist.elastic.states import elastic_job

pytestmark = pytest.mark.timeout(120)
LIMITS = Elastic(1, 2, 1)
SECRET = "correct horse battery staple"
EXIT_TIMEOUT = 4.0
CALLS, PART = 3, 3 << 20  # bytes
DEAF = 4  # connections, each with eight calls
SECRETS = pytest.mark.parametrize("secret", [None, SECRET], ids=["open", "secret"])


def _member(ctx):
    """Rank 0 forms the job alone, and keeps records until the test says "end"."""
    if ctx.rank:
        return None
    tfdist.MultiWorkerMirroredStrategy()
    job = elastic_job()
    for number in range(CALLS):
        with job.calls.call("fit"):
            values = (Value(job.records.keep(_content(number)), "uint8", (PART,)),)
            job.calls.end(Record("fit", {}, job.records.keep(b"rest %d" % number), values))
    ctx.report("addresses", ctx.addresses)
    ctx.wait_for("end", 100.0)
    began = time.monotonic()
    job.leave()
    return time.monotonic() - began


def _content(number):
    return bytes([number + 1]) * PART


class _Job:
    """The member, as others see it."""

    def __init__(self, ranks, secret):
        self.ranks = ranks
        self.addresses = tuple(ranks.wait_for(0, "addresses", timeout=60.0))
        self.address = self.addresses[0]
        self.secret = None if secret is None else secret.encode()
        self.fingerprint = callers.fingerprint(self.addresses)

    def ask(self, **fields):
        """The answer to a process of the job; `fields` may be of any kind."""
        right = {"fingerprint": self.fingerprint, "process": STRANGER}
        right |= {"call": 0, "part": "", "offset": 0}
        return call(self.address, messages.ELASTIC_RECORD, self.secret, **right | fields)

    def body(self, **fields):
        right = {"wait": 0.0, "fingerprint": self.fingerprint}
        right |= {"process": STRANGER, "call": 0, "part": "", "offset": 0}
        return json.dumps(right | fields).encode()

    def part(self):
        """The digest of a large part."""
        record = self.ask(part=self.ask(call=1)["part"])["bytes"]
        return Record.from_bytes(record).values[0].digest

    def check(self):
        """An honest newcomer reads all records, in a few seconds."""
        records = CallRecords(1 << 30)
        cluster = Cluster(workers=self.addresses, task_index=1)
        settings = Settings(secret=self.secret, rendezvous_timeout=60.0, elastic=LIMITS)
        newcomer = Membership(cluster, settings, LIMITS, {}, records=records)
        try:
            began = time.monotonic()
            for number in range(CALLS):
                record = newcomer.record(number + 1)
                assert records.read(record.values[0].digest) == _content(number)
            assert newcomer.record(CALLS + 1) is None
            assert time.monotonic() < began + 60
        finally:
            newcomer.leave()

    def megabytes(self):
        """The memory that the member has."""
        for line in Path(f"/proc/{self.ranks[0].pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise AssertionError("the member has ended")

    def end(self):
        """Lets the member end; returns the seconds that it took."""
        self.ranks.send(0, "end")
        (outcome,) = self.ranks.join(60.0, only=[0])
        assert outcome.ok, outcome.describe()
        return outcome.result


@contextlib.contextmanager
def _job(secret=None):
    env = {"TFDIST_ELASTIC": "1:2:1", "TFDIST_EXIT_TIMEOUT": str(EXIT_TIMEOUT)}
    if secret is not None:
        env["TFDIST_SECRET"] = secret
    with start_ranks(_member, 2, env=env) as ranks:
        yield _Job(ranks, secret)


@pytest.mark.long("open", covered_by="the other cases")
@SECRETS
def test_strangers_are_told_nothing(secret):
    with _job(secret) as job:
        head, part = job.ask(call=1)["part"], job.part()
        guesses = [(None, ""), (None, "f" * 16), (b"another secret", job.fingerprint)]
        if secret is not None:
            guesses.append((None, job.fingerprint))
        answers = []
        for guess, fingerprint in guesses:
            for fields in ({"call": 1}, {"part": head}, {"part": part}, {"call": 9}):
                fields = {"process": STRANGER, "call": 0, "part": "", "offset": 0, **fields}
                fields["fingerprint"] = fingerprint
                answers.append(call(job.address, messages.ELASTIC_RECORD, guess, **fields))
        assert {answer["status"] for answer in answers} == {"refused"}
        for word in (head, part, "bytes", "size"):
            assert word not in json.dumps(answers)
        job.check()


def test_a_request_is_answered_once():
    with _job(SECRET) as job:
        body, method = job.body(call=1), messages.ELASTIC_RECORD.path
        with grpc.insecure_channel(job.address) as channel:
            answer = channel.unary_unary(CHALLENGE)(b"", timeout=10)
            challenge = json.loads(answer)["challenge"]
            metadata = Signer(job.secret).sign_request(method, challenge, body)
            ask = channel.unary_unary(method)
            assert json.loads(ask(body, timeout=10, metadata=metadata))["status"] == "here"
            for other in (body, job.body(call=2)):
                with pytest.raises(grpc.RpcError) as caught:
                    ask(other, timeout=10, metadata=metadata)
                assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
        job.check()


@pytest.mark.long("open", covered_by="the other cases")
@SECRETS
def test_requests_of_any_kind_are_answered_in_words(secret):
    with _job(secret) as job:
        part = job.part()
        for number in (0, -1, CALLS + 1, 2**63, -(2**63), 2**80):
            assert job.ask(call=number) == {"status": "none"}
        for offset in (-1, -(2**80)):
            assert job.ask(part=part, offset=offset) == {"status": "gone"}
        for offset in (PART, 2**63, 2**80):
            nothing = {"status": "here", "bytes": b"", "size": PART}
            assert job.ask(part=part, offset=offset) == nothing
        for offset in (1, PART - 1):
            found = job.ask(part=part, offset=offset)["bytes"]
            assert found == _content(0)[offset : offset + (1 << 20)]
        for field, value in (
            *(("call", value) for value in ("1", 1.5, None, True, [1], {}, float("nan"))),
            *(("offset", value) for value in ("0", 0.0, None, False)),
            *(("part", value) for value in (7, None, ["a"])),
            ("process", 5),
        ):
            answer = job.ask(**{field: value})
            assert answer["status"] == "refused" and f"expected {field} to be" in answer["reason"]
        assert job.ask(part="\0" * 1000) == job.ask(part="../../etc") == {"status": "gone"}
        assert "no JSON" in _sent(job, job.body().replace(b'"call": 0', b'"call": ' + b"9" * 5000))
        assert "levels" in _sent(job, b"[" * 60_000)
        assert _sent(job, job.body(part="x" * 100_000))  # beyond the limit
        assert "HERE" not in _sent(job, b"x" * (64 << 20)).upper()
        job.check()


def _sent(job, body):
    """The refusal of a body that is no request."""
    metadata = ()
    with grpc.insecure_channel(job.address) as channel:
        if job.secret is not None:
            answer = channel.unary_unary(CHALLENGE)(b"", timeout=10)
            metadata = Signer(job.secret).sign_request(
                messages.ELASTIC_RECORD.path, json.loads(answer)["challenge"], body
            )
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(messages.ELASTIC_RECORD.path)(body, timeout=20, metadata=metadata)
    return caught.value.details()


@pytest.mark.long("open", covered_by="the other cases")
@SECRETS
def test_half_requests_keep_nobody_out(secret):
    with _job(secret) as job:
        job.check()
        before = job.megabytes()
        method = messages.ELASTIC_RECORD.path
        halves = [raw_http2.HalfCalls(job.address, method, 8, 60_000) for _ in range(20)]
        begin = raw_http2.frame(raw_http2.DATA, 1, b"\0\x7f\xff\xff\xff" + bytes(10_000))
        begin = raw_http2.PREFACE + raw_http2.call(method, 1) + begin
        huge = [raw_http2.connect(job.address, begin) for _ in range(20)]
        try:
            for _ in range(10):
                for half in halves:
                    half.proceed()
            job.check()
            assert job.megabytes() < before + 60
        finally:
            for each in (*huge, *(half.socket for half in halves)):
                each and each.close()


def test_some_that_take_no_answer_keep_nobody_out():
    with _job() as job:
        job.check()
        body, before = job.body(part=job.part()), job.megabytes()
        asks = [
            raw_http2.complete_call(messages.ELASTIC_RECORD.path, 2 * i + 1, body) for i in range(8)
        ]
        asks = raw_http2.DEAF_PREFACE + b"".join(asks)
        deaf = [raw_http2.connect(job.address, asks) for _ in range(DEAF)]
        try:
            job.check()
            grown = job.megabytes() - before
            assert grown < 40 + 8 * DEAF * 4, grown  # an answer costs three megabytes
        finally:
            for each in deaf:
                each and each.close()


@pytest.mark.long("open", covered_by="the other cases")
@SECRETS
def test_many_that_wait_for_a_call_keep_nobody_out(secret):
    with _job(secret) as job:
        job.check()
        before, end = job.megabytes(), threading.Event()

        def poll():
            while not end.is_set():
                with contextlib.suppress(grpc.RpcError):  # the port closes some of so many
                    assert "part" not in job.ask(call=CALLS + 1)

        polls = [Background(poll) for _ in range(100)]
        try:
            began = time.monotonic()
            job.check()
            assert time.monotonic() < began + 60
            assert job.megabytes() < before + 60
        finally:
            end.set()
        for each in polls:
            each.result()


def _end_beside(job, **fields):
    """The seconds that the member takes to end while one asks it, for ever."""
    end = threading.Event()
    asked = []

    def ask():
        while not end.wait(0.1):
            asked.append(job.ask(**fields))

    Background(ask)  # its last call fails long after the member's end
    try:
        deadline = time.monotonic() + 20
        while len(asked) < 4:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return job.end()
    finally:
        end.set()


@pytest.mark.long("4", covered_by="the other cases, single/elastic/test_elastic_records.py")
@pytest.mark.parametrize("number", [0, 1, CALLS + 1])
def test_a_liar_that_asks_for_a_call_does_not_keep_a_member(number):
    with _job() as job:
        if number == 1:
            job.ask(call=CALLS)  # it has read the last one
        assert _end_beside(job, call=number) < EXIT_TIMEOUT + 3


def test_a_liar_that_reads_for_ever_does_not_keep_a_member():
    with _job() as job:
        job.ask(call=1)
        assert _end_beside(job, part=job.part()) < EXIT_TIMEOUT + 4


@pytest.mark.long(
    covered_by=(
        "test_some_that_take_no_answer_keep_nobody_out, "
        "test_a_liar_that_reads_for_ever_does_not_keep_a_member"
    )
)
def test_nobody_keeps_a_member_whose_records_are_read():
    with _job() as job:
        job.check()
        assert job.end() < EXIT_TIMEOUT + 4
