"""The network interface on which a task listens: the interface of its own address in the cluster.

`TFDIST_INTERFACE` selects another one for data connections, whose address a task tells the others.
That address may be none of this host's, as behind a NAT, or an address that only this host can
reach, as Debian's 127.0.1.1 for the host's own name. A task then listens on all addresses, but only
with a shared secret.
"""

from __future__ import annotations

import functools
import ipaddress
import logging
import socket

from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.control import network
from tfdist.errors import ClusterConfigError

_log = logging.getLogger("tfdist.control")
EVERY = ""


def data_interface(cluster: Cluster, settings: Settings) -> tuple[str, str]:
    """Returns where this task listens for data connections.

    Args:
      cluster: the cluster, in which this task has an address.
      settings: the secret, and the wanted interface.

    Returns:
      The numeric address, EVERY for all addresses, and the host that this task tells the others.

    Raises:
      ClusterConfigError: as for `interface`.
    """
    assert cluster.address is not None
    named = cluster.address.rpartition(":")[0]
    if settings.interface is None or is_loopback_name(host_of(cluster.address)):
        return interface(cluster, settings.secret), named
    address = network.select(settings.interface)
    if settings.secret is None and not ipaddress.ip_address(address).is_loopback:
        _warn_of_open_port(cluster.task_name, address)
    return address, f"[{address}]" if ":" in address else address


def interface(cluster: Cluster, secret: bytes | None, wanted: str | None = None) -> str:
    """Returns the numeric address on which this task listens; EVERY for all addresses.

    Args:
      cluster: the cluster, in which this task has an address.
      secret: the shared secret or None.
      wanted: the interface (`TFDIST_INTERFACE`) to take instead of all addresses. The others call
        this task at its address in the cluster: where that is one of this host's, it is taken.

    Raises:
      ClusterConfigError: the task would have to listen on all addresses, without a secret; or the
        wanted interface does not exist.
    """
    assert cluster.address is not None
    host = host_of(cluster.address)
    own = [address for address in resolve(host) if is_of_this_host(address)]
    reachable = [address for address in own if not ipaddress.ip_address(address).is_loopback]
    others = {host_of(address) for tasks in cluster.as_dict().values() for address in tasks}
    if others <= {host} or is_loopback_name(host):
        chosen, problem = own, f"'{host}' is no address of this host"
    else:
        chosen = reachable
        problem = (
            f"'{host}' is {', '.join(own)} here, which no other host can reach"
            if own
            else f"'{host}' is no address of this host"
        )
    if not chosen and wanted is not None:
        chosen = [network.select(wanted)]
    if not chosen and secret is None:
        raise ClusterConfigError(
            f"{cluster.task_name} at {cluster.address}: {problem}, so that this task would have to "
            "listen on all addresses; expected an address of this host in the cluster (see "
            "/etc/hosts), its interface (TFDIST_INTERFACE), or a shared secret "
            "(TFDIST_SECRET_FILE) on every task"
        )
    if secret is None and not all(ipaddress.ip_address(a).is_loopback for a in chosen):
        _warn_of_open_port(cluster.task_name, host)
    # IPv4 first: clients try all addresses in the order of their own resolver.
    return min(chosen, key=lambda a: ipaddress.ip_address(a).version) if chosen else EVERY


def host_of(address: str) -> str:
    """Returns the host of "host:port", without an IPv6 address's brackets."""
    return address.rpartition(":")[0].strip("[]")


def resolve(host: str) -> list[str]:
    """Returns the numeric addresses of a host; an empty list if it cannot be resolved."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))


def is_of_this_host(address: str) -> bool:
    """Whether a numeric address is one of this host's."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def is_loopback_name(host: str) -> bool:
    """Whether a host's name is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


@functools.cache
def _warn_of_open_port(task: str, host: str) -> None:
    _log.warning(
        "%s\n  %s listens on %s without a shared secret: any process that reaches it can read and "
        "\n  change what is trained. Give all tasks the same TFDIST_SECRET_FILE; see "
        "docs/operate/security.md.\n%s",
        "*" * 80,
        task,
        host,
        "*" * 80,
    )
