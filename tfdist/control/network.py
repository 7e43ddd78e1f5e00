"""The network interfaces of this host, and the address that `TFDIST_INTERFACE` selects."""

from __future__ import annotations

import array
import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

from tfdist.errors import ClusterConfigError

_SIOCGIFCONF = 0x8912
_NAME_BYTES = 16
# sizeof(struct ifreq): the name, and a union whose size is struct ifmap's.
_RECORD_BYTES = _NAME_BYTES + struct.calcsize("@LLHBBB0L")
_MAX_ADDRESSES = 4096
_IPV6 = Path("/proc/net/if_inet6")
_GLOBAL_OR_SITE = ("00", "40")


def interfaces_of_this_host(ipv6: Path = _IPV6) -> list[tuple[str, str]]:
    """Returns (interface, numeric address) of each address of this host, IPv4 first.

    Addresses of IPv6 that hold on one link only are left out: others could not use them without
    knowing the link.

    Args:
      ipv6: the kernel's list of IPv6 addresses.
    """
    buffer = array.array("B", bytes(_RECORD_BYTES * _MAX_ADDRESSES))
    start, length = buffer.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("@iP", length, start)
        used = struct.unpack("@iP", fcntl.ioctl(probe.fileno(), _SIOCGIFCONF, request))[0]
    found = []
    records = buffer.tobytes()
    for begin in range(0, used, _RECORD_BYTES):
        name = records[begin : begin + _NAME_BYTES].partition(b"\0")[0].decode(errors="replace")
        # struct sockaddr_in: family, port, address.
        address = records[begin + _NAME_BYTES + 4 : begin + _NAME_BYTES + 8]
        # An alias, "eth0:1", is an address of its interface.
        found.append((name.partition(":")[0], socket.inet_ntoa(address)))
    try:
        lines = ipv6.read_text().splitlines()
    except OSError:  # a kernel without IPv6
        lines = []
    for line in lines:
        digits, _, _, scope, _, name = line.split()
        address_6 = ipaddress.IPv6Address(bytes.fromhex(digits))
        if scope in _GLOBAL_OR_SITE or address_6.is_loopback:
            found.append((name, str(address_6)))
    return found


def select(wanted: str) -> str:
    """Returns the numeric address of this host that `TFDIST_INTERFACE` selects, IPv4 first.

    Args:
      wanted: the name of an interface, "eth1", or a network in which the address lies,
        "10.1.0.0/16".

    Raises:
      ClusterConfigError: no address of this host matches; names the existing ones.
    """
    known = interfaces_of_this_host()
    by_name = [address for name, address in known if name == wanted]
    if by_name:
        return by_name[0]
    try:
        network = ipaddress.ip_network(wanted, strict=False)
    except ValueError:
        problem = "an interface with this name"
    else:
        in_network = [a for _, a in known if ipaddress.ip_address(a) in network]
        if in_network:
            return in_network[0]
        problem = "an address in this network"
    listed = ", ".join(f"{name} ({address})" for name, address in known)
    raise ClusterConfigError(
        f"TFDIST_INTERFACE: expected the name of one of this host's interfaces, or a network such "
        f"as 10.1.0.0/16, received {wanted!r}: this host does not have {problem}; it has {listed}"
    )
