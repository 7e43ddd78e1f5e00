"""The interface on which a task listens, for names that resolve in different ways."""

from __future__ import annotations

import pytest

from tfdist.config.cluster import Cluster
from tfdist.control import interfaces
from tfdist.errors import ClusterConfigError

SECRET = b"correct horse battery staple"
# The addresses of names on this machine, and its own addresses.
NAMES = {
    "here": ["10.0.0.1"],
    "both": ["fd00::1", "10.0.0.1"],
    "debian": ["127.0.1.1"],
    "there": ["10.0.0.2"],
    "localhost": ["::1", "127.0.0.1"],
}
OWN = {"10.0.0.1", "fd00::1", "127.0.0.1", "127.0.1.1", "::1"}


@pytest.fixture(autouse=True)
def network(monkeypatch):
    monkeypatch.setattr(interfaces, "resolve", lambda host: NAMES.get(host, [host]))
    monkeypatch.setattr(interfaces, "is_of_this_host", OWN.__contains__)
    interfaces._warn_of_open_port.cache_clear()


def chosen(host: str, other: str, secret: bytes | None = None) -> str:
    return interfaces.interface(Cluster(workers=(f"{host}:1", f"{other}:2")), secret)


@pytest.mark.parametrize(
    ("host", "other", "expected"),
    [
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("localhost", "localhost", "127.0.0.1"),
        ("[::1]", "[::1]", "::1"),
        ("10.0.0.1", "10.0.0.2", "10.0.0.1"),
        ("here", "there", "10.0.0.1"),
        ("both", "there", "10.0.0.1"),
        ("debian", "debian", "127.0.1.1"),  # all tasks are on this machine
        ("127.0.0.1", "localhost", "127.0.0.1"),
    ],
)
def test_its_own_address(host, other, expected):
    assert chosen(host, other) == chosen(host, other, SECRET) == expected


@pytest.mark.parametrize(
    ("host", "problem"),
    [
        ("there", "'there' is no address of this host"),
        ("203.0.113.7", "'203.0.113.7' is no address of this host"),  # a NAT's
        ("debian", "'debian' is 127.0.1.1 here, which no other host can reach"),
    ],
)
def test_all_addresses_only_with_a_secret(host, problem):
    assert chosen(host, "elsewhere", SECRET) == interfaces.EVERY
    with pytest.raises(ClusterConfigError, match=f"worker 0 at {host}:1: {problem}.*TFDIST_SECRET"):
        chosen(host, "elsewhere")


def test_a_warning_beyond_loopback_without_a_secret(caplog):
    chosen("localhost", "localhost")
    chosen("here", "there", SECRET)
    assert not caplog.messages
    chosen("here", "there")
    chosen("here", "there")
    (message,) = caplog.messages
    assert "worker 0 listens on here without a shared secret" in message
    assert message.startswith("*" * 80) and message.endswith("*" * 80)
