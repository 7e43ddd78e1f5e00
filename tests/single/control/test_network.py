"""`TFDIST_INTERFACE`: the address that it selects, and where a task then listens."""

from __future__ import annotations

import pytest

from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.control import interfaces, network
from tfdist.errors import ClusterConfigError

KNOWN = [
    ("lo", "127.0.0.1"),
    ("eth0", "10.0.0.1"),
    ("ib0", "10.1.0.1"),
    ("ib0", "10.2.0.1"),
    ("eth0", "fd00::1"),
]
SECRET = b"correct horse battery staple"


@pytest.fixture
def known(monkeypatch):
    monkeypatch.setattr(network, "interfaces_of_this_host", lambda: KNOWN)
    own = {address for _, address in KNOWN}
    names = {"here": ["10.0.0.1"], "nat": ["203.0.113.7"], "debian": ["127.0.1.1"]}
    monkeypatch.setattr(interfaces, "resolve", lambda host: names.get(host, [host]))
    monkeypatch.setattr(interfaces, "is_of_this_host", {*own, "127.0.1.1"}.__contains__)


def test_loopback_is_one_of_this_host():
    assert ("lo", "127.0.0.1") in network.interfaces_of_this_host()
    assert network.select("lo") == network.select("127.0.0.0/8") == "127.0.0.1"


def test_addresses_of_ipv6(tmp_path):
    file = tmp_path / "if_inet6"
    file.write_text(
        "00000000000000000000000000000001 01 80 10 80       lo\n"
        "fd000000000000000000000000000002 02 40 00 80     eth0\n"
        "fe80000000000000000000fffe000001 02 40 20 80     eth0\n"
    )
    found = network.interfaces_of_this_host(file)
    assert [entry for entry in found if ":" in entry[1]] == [("lo", "::1"), ("eth0", "fd00::2")]
    assert not [e for e in network.interfaces_of_this_host(tmp_path / "none") if ":" in e[1]]


@pytest.mark.parametrize(
    ("wanted", "address"),
    [
        ("ib0", "10.1.0.1"),
        ("eth0", "10.0.0.1"),
        ("10.2.0.0/16", "10.2.0.1"),
        ("10.2.0.9/16", "10.2.0.1"),
        ("10.0.0.1", "10.0.0.1"),
        ("fd00::/8", "fd00::1"),
    ],
)
def test_select(known, wanted, address):
    assert network.select(wanted) == address


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ("eth7", "does not have an interface with this name"),
        ("10.9.0.0/16", "does not have an address in this network"),
        ("10.9.0.0/99", "does not have an interface with this name"),
    ],
)
def test_an_error_names_the_interfaces_that_exist(known, wanted, problem):
    with pytest.raises(ClusterConfigError, match=f"TFDIST_INTERFACE: .*'{wanted}'.*{problem}"):
        network.select(wanted)
    with pytest.raises(ClusterConfigError, match=r"eth0 \(10.0.0.1\), ib0 \(10.1.0.1\)"):
        network.select(wanted)


@pytest.mark.parametrize(
    ("host", "wanted", "control", "data"),
    [
        # The others call it at its name; data goes over the other interface.
        ("here", "ib0", "10.0.0.1", ("10.1.0.1", "10.1.0.1")),
        ("here", "fd00::/8", "10.0.0.1", ("fd00::1", "[fd00::1]")),
        # Instead of all addresses.
        ("nat", "ib0", "10.1.0.1", ("10.1.0.1", "10.1.0.1")),
        ("debian", "ib0", "10.1.0.1", ("10.1.0.1", "10.1.0.1")),
        # All tasks are on this machine.
        ("127.0.0.1", "ib0", "127.0.0.1", ("127.0.0.1", "127.0.0.1")),
        ("here", None, "10.0.0.1", ("10.0.0.1", "here")),
    ],
)
@pytest.mark.parametrize("secret", [SECRET, None])
def test_where_a_task_listens(known, host, wanted, control, data, secret):
    other = host if host == "127.0.0.1" else "there"
    cluster = Cluster(workers=(f"{host}:1", f"{other}:2"))
    assert interfaces.interface(cluster, secret, wanted) == control
    assert interfaces.data_interface(cluster, Settings(secret, interface=wanted)) == data


def test_the_setting():
    assert Settings.from_environment({"TFDIST_INTERFACE": " eth1 "}).interface == "eth1"
    assert Settings.from_environment({"TFDIST_INTERFACE": ""}).interface is None
