"""The end of a control server whose thread has no time for it."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import warnings

import grpc
import pytest

from support.elastic.control_tasks import Background, clusters
from tfdist.control import encoding, server
from tfdist.control.server import ControlServer
from tfdist.ps.stats import messages


@contextlib.contextmanager
def busy(control):
    """Within it the server's thread does something else."""
    began, over = threading.Event(), threading.Event()

    def work():
        began.set()
        over.wait(50.0)

    control._loop.call_soon_threadsafe(work)
    assert began.wait(50.0)
    try:
        yield
    finally:
        over.set()


def warned(control):
    """Python's warnings by the end of the server's thread."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        control._thread.join(20.0)
        assert not control._thread.is_alive() and control._loop.is_closed()
        gc.collect()
    return [str(warning.message) for warning in caught]


def test_a_server_that_cannot_stop_in_time_stops_later(monkeypatch):
    monkeypatch.setattr(server, "_STOP_TIMEOUT", 0.1)
    cluster = clusters(2)[0]
    control = ControlServer(cluster, None, {})
    with busy(control):
        began = time.monotonic()
        control.close()
        assert time.monotonic() - began < 40.0
    assert warned(control) == []
    ControlServer(cluster, None, {}).close()  # the port is free


def test_calls_in_progress_end_with_a_server_that_stops_later(monkeypatch):
    monkeypatch.setattr(server, "_STOP_TIMEOUT", 0.1)
    monkeypatch.setattr(server, "_STOP_GRACE", 0.1)
    cluster = clusters(2)[0]
    began, over = threading.Event(), threading.Event()

    def handle(request, context):
        began.set()
        over.wait(50.0)
        return {"status": "too late"}

    control = ControlServer(cluster, None, {messages.STATS: handle})
    with grpc.insecure_channel(cluster.address) as channel:
        body = encoding.encode(messages.StatsRequest(10.0))
        call = Background(channel.unary_unary(messages.STATS.path), body, timeout=20.0)
        assert began.wait(50.0)
        with busy(control):
            control.close()
        assert warned(control) == []
        with pytest.raises(grpc.RpcError):
            call.result()
        over.set()
