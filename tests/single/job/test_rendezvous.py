"""Rendezvous: its result on each rank, and the messages about missing ranks."""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import time

import grpc
import pytest

from support.elastic.control_tasks import (
    Background,
    LogWatch,
    clusters,
    data_address,
    meet,
    planes,
    settings,
)
from support.patience import wait_until
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.control import client, server
from tfdist.errors import (
    AddressInUseError,
    ClusterConfigError,
    RendezvousTimeoutError,
    TfdistError,
)
from tfdist.job import messages
from tfdist.job.plane import ControlPlane
from tfdist.observe import clock
from tfdist.observe.clock import CLOCK, ClockRequest


@pytest.fixture(name="log")
def _log():
    with LogWatch() as watch:
        yield watch


@pytest.mark.parametrize(("size", "chief"), [(1, False), (1, True), (2, True), (5, False)])
def test_all_get_the_same_result(size, chief):
    with planes(clusters(size, chief=chief)) as members:
        results = meet(members)
    first = results[0]
    assert all(result == first for result in results)
    assert first.generation == 1
    assert len(first.key) == 32 and first.key.hex() not in repr(first)
    assert first.addresses == tuple(data_address(rank) for rank in range(size))


def test_each_rendezvous_is_a_generation_with_a_key_of_its_own():
    with planes(clusters(3)) as members:
        rounds = [meet(members) for _ in range(3)]
    for number, results in enumerate(rounds, start=1):
        assert {result.generation for result in results} == {number}
        assert len({result.key for result in results}) == 1
    assert len({results[0].key for results in rounds}) == 3


def test_the_last_rank_may_start_first_and_rank_0_last():
    members = clusters(3)
    started, calls = [], []
    try:
        for cluster in reversed(members):
            plane = ControlPlane(cluster, settings())
            started.append(plane)
            calls.append(Background(plane.rendezvous, data_address(cluster.rank), log_interval=0.2))
            if cluster.rank:
                # Long enough for several attempts to reach a rank 0 that is not there.
                with pytest.raises(TimeoutError):
                    calls[-1].result(timeout=0.8)
        results = [call.result() for call in calls]
    finally:
        for plane in started:
            plane.close()
    assert len({result.key for result in results}) == 1
    assert results[0].addresses == tuple(data_address(rank) for rank in range(3))


def test_those_missing_are_named_while_waiting_and_at_the_deadline(caplog):
    members = clusters(4, chief=True)
    absent = [f"worker {i} at {members[i + 1].address}" for i in (0, 2)]
    caplog.set_level(logging.INFO)
    start = time.monotonic()
    with planes([members[0], members[2]]) as (chief, worker):
        calls = [
            Background(chief.rendezvous, data_address(0), timeout=1.5, log_interval=0.4),
            Background(worker.rendezvous, data_address(2), timeout=1.5, log_interval=0.4),
        ]
        for call, who in zip(calls, ("chief (rank 0 of 4)", "worker 1 (rank 2 of 4)"), strict=True):
            with pytest.raises(RendezvousTimeoutError) as caught:
                call.result()
            message = str(caught.value)
            assert message.startswith(f"{who}: no rendezvous within 1.5 s; expected 4 ranks")
            assert all(name in message for name in absent)
    assert time.monotonic() - start >= 1.5
    waiting = [r for r in caplog.records if "waiting for " + ", ".join(absent) in r.getMessage()]
    assert all(record.levelno >= logging.WARNING for record in waiting)
    assert {record.getMessage().partition(" (rank")[0] for record in waiting} == {
        "chief",
        "worker 1",
    }


def test_an_absent_rank_0_is_named(caplog):
    members = clusters(2)
    where = f"worker 0 at {members[0].address}"
    with planes([members[1]]) as (worker,):
        with pytest.raises(RendezvousTimeoutError, match=f"still missing: {where} .*refused"):
            worker.rendezvous(data_address(1), timeout=1.2, log_interval=0.3)
    assert any(f"waiting for {where}" in message for message in caplog.messages)


def test_a_rank_that_gave_up_is_not_counted():
    with planes(clusters(3)) as members:
        with pytest.raises(RendezvousTimeoutError):
            members[1].rendezvous(data_address(1), timeout=0.3)
        others = [
            Background(members[rank].rendezvous, data_address(rank), timeout=1.5) for rank in (0, 2)
        ]
        for other in others:
            with pytest.raises(RendezvousTimeoutError, match="still missing: .*worker 1 at "):
                other.result()
        assert {result.generation for result in meet(members)} == {1}


def test_a_restarted_rank_takes_the_place_of_its_former_process(log):
    members = clusters(3)
    with planes(members[:2]) as (zero, former), ControlPlane(members[2], settings()) as two:
        first = Background(zero.rendezvous, data_address(0), log_interval=0.2)
        lost = Background(former.rendezvous, "10.9.9.9:1", log_interval=0.2)
        # Only worker 2 is missing: worker 1's former process has joined.
        log.wait_for(r"waiting for worker 2 at [^,]*$")
        # Only its port: the former process keeps calling, like a process that was disconnected for
        # a while.
        former._server.close()
        with ControlPlane(members[1], settings()) as restarted:
            again = Background(restarted.rendezvous, data_address(1))
            with pytest.raises(ClusterConfigError, match="another process has since joined as wo"):
                lost.result()
            last = Background(two.rendezvous, data_address(2))
            results = [call.result() for call in (first, again, last)]
    assert {result.generation for result in results} == {1}
    assert {result.addresses for result in results} == {tuple(map(data_address, range(3)))}


def test_a_broken_connection_ends_a_ranks_presence(log):
    members = clusters(3)
    with planes(members[:2]) as (zero, one):
        first = Background(zero.rendezvous, data_address(0), log_interval=0.2)
        lost = Background(one.rendezvous, data_address(1))
        log.wait_for(r"waiting for worker 2 at [^,]*$")
        one.close()
        with pytest.raises(TfdistError, match="closed during the rendezvous"):
            lost.result()
        log.wait_for(r"waiting for worker 1 at [^,]*, worker 2 at [^,]*$")
        with planes(members[1:]) as others:
            calls = [
                Background(other.rendezvous, data_address(rank))
                for rank, other in enumerate(others, start=1)
            ]
            assert {call.result().generation for call in (first, *calls)} == {1}


def test_rank_0_that_restarts_is_found_again(log):
    members = clusters(2)
    with ControlPlane(members[1], settings()) as one:
        waiting = Background(one.rendezvous, data_address(1), log_interval=0.2)
        with ControlPlane(members[0], settings()):
            log.wait_for(f"worker 1 .*waiting for worker 0 at {members[0].address}")
        with ControlPlane(members[0], settings()) as zero:
            assert zero.rendezvous(data_address(0)) == waiting.result()


def test_other_clusters_are_refused_and_disturb_nobody(caplog):
    members = clusters(2)
    more = Cluster(workers=(*members[0].workers, "127.0.0.1:9"), task_index=1)
    other = Cluster(workers=(members[0].workers[0], f"localhost:{_port(members[1])}"), task_index=1)
    with planes(members[:1]) as (zero,):
        first = Background(zero.rendezvous, data_address(0))
        names = f"worker 1 at .* called worker 0 at {members[0].address}: refused: "
        with ControlPlane(more, settings()) as plane:
            with pytest.raises(ClusterConfigError, match=names + "the caller counts 3 .* counts 2"):
                plane.rendezvous(data_address(1))
        with ControlPlane(other, settings()) as plane:
            with pytest.raises(
                ClusterConfigError, match=names + "the caller has another cluster"
            ) as caught:
                plane.rendezvous(data_address(1))
        # The caller's own addresses; rank 0 does not tell its own to an unknown caller.
        assert all(address in str(caught.value) for address in other.workers)
        assert members[0].workers[1] not in str(caught.value)
        with ControlPlane(members[1], settings()) as one:
            assert one.rendezvous(data_address(1)) == first.result()
    assert any("refused worker 1, calling from 127.0.0.1" in line for line in caplog.messages)


def test_an_address_that_is_not_rank_0s_is_recognised():
    members = clusters(3)
    swapped = Cluster(workers=tuple(members[0].workers[i] for i in (1, 0, 2)), task_index=2)
    with planes([members[1], swapped]) as (_, two):
        with pytest.raises(
            ClusterConfigError,
            match="called worker 0 at .*this task has no service Rendezvous; expected rank 0 of i",
        ):
            two.rendezvous(data_address(2))


@pytest.mark.parametrize(("family", "host"), [("AF_INET", "127.0.0.1"), ("AF_INET6", "::1")])
def test_a_port_in_use_names_task_and_address(family, host):
    (cluster,) = clusters(1)
    if ":" in host:
        cluster = Cluster(workers=(f"[{host}]:{_port(cluster)}",))
    with socket.socket(getattr(socket, family)) as holder:
        holder.bind((host, _port(cluster)))
        holder.listen()
        with pytest.raises(
            AddressInUseError, match=rf"worker 0 at {re.escape(cluster.address)}: port .* in use"
        ):
            ControlPlane(cluster, settings())
    ControlPlane(cluster, settings()).close()


def test_two_tasks_cannot_share_a_port():
    (cluster,) = clusters(1)
    with ControlPlane(cluster, settings()):
        with pytest.raises(AddressInUseError):
            ControlPlane(cluster, settings())


def test_a_local_cluster_listens_nowhere():
    with ControlPlane(Cluster.local(), Settings()) as plane:
        assert plane._server is None
        results = [plane.rendezvous("localhost:7") for _ in range(2)]
        assert [m.generation for m in results] == [1, 2]
        assert results[0].addresses == ("localhost:7",)
        assert results[0].key != results[1].key
        assert plane.exit_barrier() is True


def test_tasks_that_do_not_train_have_no_rendezvous():
    port = clusters(1)[0].address
    ps = Cluster(workers=("127.0.0.1:9",), ps=(port,), task_type="ps")
    evaluator = Cluster(workers=("127.0.0.1:9",), task_type="evaluator")
    for cluster in (ps, evaluator):
        with ControlPlane(cluster, settings()) as plane:
            for call in (lambda plane=plane: plane.rendezvous("a:1"), plane.exit_barrier):
                with pytest.raises(ClusterConfigError, match=f"{cluster.task_type} has no rank"):
                    call()


def test_bad_arguments_and_use_after_close():
    (cluster,) = clusters(1)
    plane = ControlPlane(cluster, settings())
    with pytest.raises(ClusterConfigError, match="expected a data address .* it has no port"):
        plane.rendezvous("nowhere")
    plane.close()
    plane.close()
    with pytest.raises(TfdistError, match="the control plane is closed"):
        plane.rendezvous("a:1")


def test_a_patient_call_waits_for_a_server_that_starts_later():
    (cluster,) = clusters(1)
    request = ClockRequest(wait=0.0)
    connection = client.ControlClient(cluster, None, cluster.address, "worker 0")
    with pytest.raises(client.UnreachableError):
        connection.call(CLOCK, request, 0.0, patient=False)
    call = Background(connection.call, CLOCK, request, 20.0, patient=True)
    time.sleep(0.5)
    with contextlib.closing(server.ControlServer(cluster, None, clock.HANDLERS)):
        assert call.result(30)["status"] == "clock"
    connection.close()


def test_a_request_that_is_too_large_is_not_sent():
    (cluster,) = clusters(1)
    with (
        contextlib.closing(server.ControlServer(cluster, None, clock.HANDLERS)),
        contextlib.closing(
            client.ControlClient(cluster, None, cluster.address, "worker 0")
        ) as connection,
    ):
        question = ClockRequest(wait=20.0)
        connection.call(CLOCK, question, 20.0, patient=False)
        request = messages.ExitRequest(0, "x" * 70_000, 1, wait=20.0, abandon=False)
        with pytest.raises(TfdistError, match="Exit request .* 65,536 bytes, has 70,") as raised:
            connection.call(messages.EXIT, request, 20.0, patient=True)
        assert not isinstance(raised.value, ClusterConfigError)  # of the other task
        connection.call(CLOCK, question, 20.0, patient=False)


def test_a_silent_connection_is_kept(monkeypatch):
    """The server puts up with the pings by which the client keeps it; here 200 times as many."""
    for module in (client, server):
        faster = [
            (k, v // 200 if "ping_interval" in k or "keepalive_time_" in k else v)
            for k, v in module._OPTIONS
        ]
        assert faster != module._OPTIONS
        monkeypatch.setattr(module, "_OPTIONS", faster)
    (cluster,) = clusters(1)
    states = []
    with ControlPlane(cluster, settings()):
        connection = client.ControlClient(cluster, None, cluster.address, "worker 0")
        connection._channel._channel.subscribe(states.append, try_to_connect=True)
        wait_until(lambda: grpc.ChannelConnectivity.READY in states, "the connection")
        time.sleep(4)
        connection.close()
    after = states[states.index(grpc.ChannelConnectivity.READY) + 1 :]
    assert set(after) <= {grpc.ChannelConnectivity.SHUTDOWN}


def _port(cluster: Cluster) -> int:
    return int(cluster.address.rpartition(":")[2])
