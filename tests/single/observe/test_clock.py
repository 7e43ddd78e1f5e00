"""The offset between two tasks' clocks."""

from __future__ import annotations

import time

import pytest

from tfdist.config.cluster import Cluster
from tfdist.control.server import ControlServer
from tfdist.launch.ports import free_ports
from tfdist.observe import clock
from tfdist.observe.clock import Probe, domain, estimate
from tfdist.observe.clock_client import ClockClient

SECRET = b"0123456789abcdef"


def test_the_shortest_round_trip_counts():
    # Ahead by 1,000; 10 and 30 ns on the ways, 5 ns in the reference.
    skewed = Probe(asked=0, received=1010, sent=1015, answered=45)
    quick = Probe(asked=100, received=1104, sent=1109, answered=113)
    assert (skewed.round_trip, skewed.offset) == (40, 990)
    assert (quick.round_trip, quick.offset) == (8, 1000)
    found = estimate([skewed, quick], "there")
    assert (found.offset, found.error, found.at, found.reference) == (1000, 4, 113, "there")


@pytest.mark.parametrize("there, back", [(0, 90), (90, 0), (45, 45)])
def test_the_error_is_within_its_bound(there, back):
    offset = -7_000_000_123
    probe = Probe(0, there + offset, there + offset + 11, there + 11 + back)
    found = estimate([probe], "there")
    assert abs(found.offset - offset) <= found.error == 45


@pytest.fixture
def two_tasks():
    ports = free_ports(2)
    cluster = Cluster(workers=tuple(f"127.0.0.1:{port}" for port in ports), task_index=0)
    # The tests exchange the function later.
    handlers = {clock.CLOCK: lambda request, context: clock.answer(request, context)}
    server = ControlServer(cluster, SECRET, handlers)
    yield cluster, Cluster(workers=cluster.workers, task_index=1)
    server.close()


def client_of(caller, secret=SECRET):
    return ClockClient(caller, secret, caller.training_addresses)


def test_a_reference_on_the_same_clock_is_exact(two_tasks):
    _, caller = two_tasks
    client = client_of(caller)
    try:
        found = client.measure()
    finally:
        client.close()
    assert (found.offset, found.error, found.reference) == (0, 0, domain())


@pytest.fixture
def shift(monkeypatch):
    """Lets servers answer with the clock of another machine, which is ahead by this many ns."""
    shift = 3_000_000_000
    monkeypatch.setattr(
        clock,
        "answer",
        lambda request, context: {
            "status": "clock",
            "domain": "another machine",
            "received": context.received + shift,
            "sent": time.monotonic_ns() + shift,
        },
    )
    return shift


def test_another_clock_is_measured(two_tasks, shift):
    reference, caller = two_tasks
    client = client_of(caller)
    try:
        found = client.measure()
    finally:
        client.close()
    assert found.reference == "another machine"
    assert 0 < abs(found.offset - shift) <= found.error < 1_000_000_000
    # The reference does not ask.
    own = client_of(reference)
    assert own.measure().reference == domain()


def test_a_reference_that_does_not_answer(two_tasks, shift):
    reference, caller = two_tasks
    unreachable = Cluster(workers=("127.0.0.1:1", *reference.workers), task_index=2)
    patient = ClockClient(unreachable, SECRET, unreachable.workers)
    impatient = ClockClient(unreachable, SECRET, unreachable.workers, patience=0.0)
    strangers = [client_of(caller, b"another secret of it"), client_of(caller, None)]
    try:
        assert patient.measure() is None
        assert impatient.measure().reference == "another machine"  # of worker 1
        assert [client.measure() for client in strangers] == [None, None]
    finally:
        for client in (patient, impatient, *strangers):
            client.close()
