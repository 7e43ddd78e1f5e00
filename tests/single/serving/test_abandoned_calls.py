"""Calls of gRPC whose clients have left count as long as their threads work."""

from __future__ import annotations

import threading

import grpc
import pytest

from support.patience import PATIENCE, wait_until
from support.serving.clients import TIMEOUT
from tfdist.serving.model_server.grpc_server import GrpcServer

THREADS, MAX_CALLS = 2, 4


class Working:
    """A method whose calls end when they are let go."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []
        self.go = threading.Event()

    def __call__(self, body: bytes, deadline: float) -> bytes:
        self.calls.append(body)
        assert self.go.wait(TIMEOUT * PATIENCE)
        return body


@pytest.fixture
def work():
    work = Working()
    yield work
    work.go.set()


def started(work: Working) -> GrpcServer:
    return GrpcServer(
        {"test.Service": {"Work": work, "Echo": lambda body, deadline: body}},
        lambda: True,
        "127.0.0.1",
        0,
        max_bytes=1 << 20,
        threads=THREADS,
        max_calls=MAX_CALLS,
    )


@pytest.fixture
def server(work):
    server = started(work)
    yield server
    work.go.set()
    server.close(TIMEOUT)


@pytest.fixture
def channel(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield channel


def begin(channel, body: bytes, timeout: float = TIMEOUT, method: str = "Work"):
    return channel.unary_unary(f"/test.Service/{method}").future(body, timeout=timeout)


def counted(server) -> int:
    return server._in_progress.requests


@pytest.mark.parametrize("leaves", ["cancelled", "at its deadline"])
def test_a_call_counts_until_its_thread_has_ended(server, channel, work, leaves):
    for number in range(THREADS):
        call = begin(channel, b"%d" % number, 0.5 if leaves == "at its deadline" else TIMEOUT)
        wait_until(lambda number=number: len(work.calls) > number, "a call in its thread")
        if leaves == "cancelled":
            call.cancel()
        else:
            assert call.exception().code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert counted(server) == THREADS
    # Both threads work for clients that have left: so these wait, and there is no room for more.
    waiting = [begin(channel, b"waits", method="Echo") for _ in range(MAX_CALLS - THREADS)]
    wait_until(lambda: counted(server) == MAX_CALLS, "waiting calls")
    refused = begin(channel, b"one more", method="Echo").exception()
    assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert not any(call.done() for call in waiting)
    work.go.set()
    assert [call.result() for call in waiting] == [b"waits"] * len(waiting)
    wait_until(lambda: counted(server) == 0, "the end of all calls")
    assert begin(channel, b"again", method="Echo").result() == b"again"


def test_a_call_that_leaves_before_its_turn_leaves_nothing(server, channel, work):
    working = []  # a call without a reference is cancelled
    for number in range(THREADS):
        working.append(begin(channel, b"%d" % number))
        wait_until(lambda number=number: len(work.calls) > number, "a call in its thread")
    for _ in range(3):
        waiting = [begin(channel, b"leaves") for _ in range(MAX_CALLS - THREADS)]
        wait_until(lambda: counted(server) == MAX_CALLS, "waiting calls")
        for call in waiting:
            call.cancel()
        wait_until(lambda: counted(server) == THREADS, "room for others")
        # Not even its body, which may be large.
        assert server._pool._work_queue.empty()
    work.go.set()
    assert begin(channel, b"last", method="Echo").result() == b"last"
    assert [call.result() for call in working] == work.calls == [b"0", b"1"]


def test_the_end_waits_for_a_thread_whose_client_has_left(work):
    """Its model is freed after that."""
    server, ended = started(work), threading.Event()

    def close():
        server.close(TIMEOUT * PATIENCE)
        ended.set()

    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        call = begin(channel, b"works")
        wait_until(lambda: work.calls == [b"works"], "a call in its thread")
        call.cancel()
        wait_until(call.done, "the end of the call")
        closing = threading.Thread(target=close, daemon=True)
        closing.start()
        wait_until(lambda: server._in_progress.is_ending, "the end")
        assert not ended.wait(0.5)
        work.go.set()
        assert ended.wait(TIMEOUT * PATIENCE)
        closing.join(TIMEOUT)
