"""Processes that know rank 0's host only: all receive all hosts, or an error that says why not."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tfdist.config.cluster import Cluster
from tfdist.config.environments.launched import HostExchange
from tfdist.config.settings import Settings
from tfdist.control.held_calls import ClientContext
from tfdist.errors import AuthenticationError, ClusterConfigError, RendezvousTimeoutError
from tfdist.job import address_exchange, messages
from tfdist.job.address_exchange import AddressBook, addresses_of
from tfdist.launch.ports import free_ports

SETTINGS = Settings(rendezvous_timeout=30.0)


def first_port(size: int) -> int:
    """The first of the ports of `size` processes and their exchange; only that one is opened."""
    return free_ports(1)[0] - size


def exchange_of(size: int, servers: int = 0) -> list[HostExchange]:
    port = first_port(size)
    return [HostExchange(index, size, servers, "127.0.0.1", port) for index in range(size)]


def request(exchange: HostExchange, rank: int = 1, **changed) -> messages.AddressRequest:
    fields = {
        "rank": rank,
        "world_size": exchange.size,
        "servers": exchange.servers,
        "host": f"host{rank}",
        "process": f"process {rank}",
        "wait": 0.0,
    }
    return messages.AddressRequest(**(fields | changed))


def test_all_receive_all_hosts():
    tasks = exchange_of(4)
    with ThreadPoolExecutor(4) as pool:
        # The first one last: the others wait for it.
        found = list(pool.map(lambda task: addresses_of(task, SETTINGS), reversed(tasks)))
    assert found == [[f"127.0.0.1:{tasks[0].first_port + i}" for i in range(4)]] * 4


def test_the_cluster_of_an_environment_is_asked_for_once(monkeypatch):
    calls = []

    def answer(exchange, settings):
        calls.append(exchange)
        return ["host0:4001", "10.0.0.2:4002", "10.0.0.3:4003"]

    monkeypatch.setattr(address_exchange, "addresses_of", answer)
    monkeypatch.setattr(address_exchange, "_known", {})
    environ = {"RANK": "2", "WORLD_SIZE": "3", "MASTER_ADDR": "host0", "MASTER_PORT": "4000"}
    found = [Cluster.from_environment({**environ, "TFDIST_PS": "1"}) for _ in range(2)]
    expected = Cluster(
        chief=("host0:4001",), workers=("10.0.0.2:4002",), ps=("10.0.0.3:4003",), task_type="ps"
    )
    assert found == [expected] * 2
    assert calls == [HostExchange(2, 3, 1, "host0", 4001)]


def test_the_book_waits_and_answers_again():
    (exchange, *_) = exchange_of(3)
    book = AddressBook(exchange)
    first = request(exchange, 1)
    assert book.add(first, ClientContext()) == {"status": "waiting", "missing": [2]}
    assert book.wait(0.0) == [2]
    # Restarted before the others came: its new host counts.
    again = request(exchange, 1, process="another", host="host1b")
    assert book.add(again, ClientContext())["status"] == "waiting"
    complete = {"status": "complete", "hosts": ["127.0.0.1", "host1b", "host2"]}
    assert book.add(request(exchange, 2), ClientContext()) == complete
    assert book.add(again, ClientContext()) == complete
    assert book.wait(0.0) == complete["hosts"]
    answer = book.add(request(exchange, 1, process="third"), ClientContext())
    assert answer == {
        "status": "refused",
        "reason": "another process is rank 1 of this job already",
    }
    book.wait_until_answered(10.0)


def test_a_broken_connection_ends_the_wait():
    (exchange, *_) = exchange_of(3)
    book, context = AddressBook(exchange), ClientContext()
    context.disconnected = True
    answer = book.add(request(exchange, 1, wait=60.0), context)
    assert answer["status"] == "waiting"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"rank": 3}, "expected a rank in"),
        ({"rank": -1}, "expected a rank in"),
        ({"rank": 0}, "rank 0, which this task is"),
        ({"world_size": 4}, "counts 4 processes with TFDIST_PS=0, this task counts 3"),
        ({"servers": 1}, "TFDIST_PS=1, this task counts 3 with TFDIST_PS=0"),
        ({"host": "a b"}, "expected a host, received 'a b'"),
        ({"host": "a:1"}, "expected a host"),
        ({"host": ""}, "expected a host"),
    ],
)
def test_what_the_book_refuses(changed, reason):
    (exchange, *_) = exchange_of(3)
    book = AddressBook(exchange)
    answer = book.add(request(exchange, **changed), ClientContext())
    assert answer["status"] == "refused" and reason in answer["reason"]
    assert book.wait(0.0) == [1, 2]


def test_missing_processes_are_named():
    tasks = exchange_of(3)
    late = Settings(rendezvous_timeout=1.0)
    with ThreadPoolExecutor(2) as pool:
        zero, one = (pool.submit(addresses_of, tasks[rank], late) for rank in (0, 1))
    with pytest.raises(RendezvousTimeoutError, match="rank 0 of 3 .*still missing: rank 2"):
        zero.result()
    with pytest.raises(RendezvousTimeoutError, match="rank 1 of 3: .* the host of rank 2|rank 0"):
        one.result()


def test_without_rank_0():
    (_, one) = exchange_of(2)
    with pytest.raises(RendezvousTimeoutError, match=f"rank 0 at {one.address} .*refused"):
        addresses_of(one, Settings(rendezvous_timeout=0.5))
    unknown = HostExchange(1, 2, 0, "no-such-host.invalid", one.first_port)
    with pytest.raises(RendezvousTimeoutError, match="address of no-such-host.invalid.*MASTER_"):
        addresses_of(unknown, Settings(rendezvous_timeout=0.5))


def test_with_another_secret_or_number():
    tasks = exchange_of(3)
    secret = Settings(secret=b"a secret of rank 0", rendezvous_timeout=30.0)
    started = threading.Event()

    def rank_0():
        started.set()
        return addresses_of(tasks[0], secret)

    with ThreadPoolExecutor(3) as pool:
        zero = pool.submit(rank_0)
        started.wait(60)
        with pytest.raises(AuthenticationError, match="rank 1 of 3 at .* called rank 0 at"):
            addresses_of(tasks[1], SETTINGS)
        more = HostExchange(1, 4, 0, "127.0.0.1", tasks[0].first_port - 1)
        with pytest.raises(ClusterConfigError, match="counts 4 processes.*this task counts 3"):
            addresses_of(more, secret)
        others = [pool.submit(addresses_of, tasks[rank], secret) for rank in (1, 2)]
        assert zero.result() == others[0].result() == others[1].result()
