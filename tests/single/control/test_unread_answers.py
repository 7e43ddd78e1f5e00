"""Callers that do not read their answers: a task keeps no more of these than its limit."""

from __future__ import annotations

import contextlib

import grpc
import pytest

from support.elastic.control_tasks import clusters
from tfdist.control import encoding, server
from tfdist.control.server import ControlServer
from tfdist.ps.stats import messages

LARGE = 1 << 20
BODY = encoding.encode(messages.StatsRequest(10.0))


@pytest.fixture
def address():
    """Of a server with large answers."""
    answers = {messages.STATS: lambda request, context: {"status": "here", "text": "x" * LARGE}}
    cluster = clusters(2)[0]
    with contextlib.closing(ControlServer(cluster, None, answers)):
        yield cluster.address


def ask(channel):
    """Begins a call; its answer is read if it is iterated over."""
    return channel.unary_stream(messages.STATS.path)(BODY, timeout=50.0)


def test_answers_that_nobody_reads_are_bounded(monkeypatch, address):
    monkeypatch.setattr(server, "_MAX_UNREAD", 5 * LARGE)
    with contextlib.ExitStack() as open_channels:

        def connection(number):
            # One of its own, which takes little that is not asked for.
            options = [("grpc.use_local_subchannel_pool", 1), ("tfdist.number", number)]
            options += [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16384)]
            return open_channels.enter_context(grpc.insecure_channel(address, options))

        unread = [ask(connection(number)) for number in range(4)]
        for call in unread:
            call.initial_metadata()  # its answer is on its way
        with pytest.raises(grpc.RpcError) as refused:
            next(ask(connection(4)))
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
        assert "4 answers" in refused.value.details()
        # Answers that are read, or given up, make room.
        assert len(next(unread[0])) > LARGE
        unread[1].cancel()
        for _ in range(3):
            assert len(next(ask(connection(5)))) > LARGE
