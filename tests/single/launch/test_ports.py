"""Free ports are distinct, really free, and none that the kernel gives to outgoing connections."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from tfdist.launch.ports import ephemeral_range, free_ports, free_range


def test_ports_are_distinct_free_and_not_ephemeral():
    ports = free_ports(20)
    assert len(set(ports)) == 20
    first, last = ephemeral_range()
    assert not any(first <= port <= last for port in ports)
    for port in ports:
        with socket.create_server(("127.0.0.1", port)) as server:
            assert server.getsockname()[1] == port


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_port_that_somebody_listens_on_is_passed_over(address):
    wanted, taken = free_ports(2)
    with socket.create_server((address, taken)):
        assert free_ports(1, [taken, wanted]) == [wanted]
        with pytest.raises(OSError, match="expected 2 free ports, found only 1"):
            free_ports(2, [taken, wanted])
    assert free_ports(2, [taken, wanted]) == [taken, wanted]


HOLDS = """
import sys
from tfdist.launch.ports import free_ports
print(free_ports(1, [int(sys.argv[1])]), flush=True)
sys.stdin.read()
"""


def candidates(taken, other):
    """The candidates of `free_ports`; when the second is tried, the first can be bound."""
    yield taken
    with socket.create_server(("127.0.0.1", taken)):
        yield other


def test_a_port_that_another_process_has_chosen_is_passed_over():
    with socket.create_server(("127.0.0.1", 0)) as server:
        wanted = server.getsockname()[1]  # of no other test's process
    (other,) = free_ports(1)
    command = [sys.executable, "-c", HOLDS, str(wanted)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == f"[{wanted}]\n"
        assert free_ports(1, [wanted, other]) == [other]
        assert free_range(1, [wanted, other]) == other
        # Not even for a moment: the task that has it may come.
        assert free_ports(1, candidates(wanted, other)) == [other]
        process.communicate(timeout=60)
    assert free_ports(1, [wanted, other]) == [wanted]


def test_no_ports():
    assert free_ports(0) == []


def test_the_range_has_a_default_where_the_kernel_does_not_say(tmp_path):
    assert ephemeral_range(tmp_path / "missing") == (32768, 60999)
    (tmp_path / "range").write_text("10000\t20000\n")
    assert ephemeral_range(tmp_path / "range") == (10000, 20000)
