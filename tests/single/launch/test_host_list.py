"""The hosts of `tfdist run --hosts` and `--hostfile`, and which task runs on which."""

from __future__ import annotations

import pytest

from tfdist.errors import ClusterConfigError
from tfdist.launch.binding import Binding, Cpu, shares, usable_cpus
from tfdist.launch.hosts.host_list import Host, parse_host_lines, parse_hosts, place


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a:2,b", [("a", 2), ("b", 1)]),
        ("me@node-1.example.org:4", [("me@node-1.example.org", 4)]),
        ("10.0.0.1:2, 10.0.0.2:3", [("10.0.0.1", 2), ("10.0.0.2", 3)]),
        ("[fd00::1]:2,[fd00::2]", [("[fd00::1]", 2), ("[fd00::2]", 1)]),
    ],
)
def test_a_list(text, hosts):
    assert [(host.name, host.slots) for host in parse_hosts(text)] == hosts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--hosts: expected a host, as in 'node1:2' or '[fd00::1]:2', received ''"),
        ("a,", "expected a host, as in 'node1:2' or '[fd00::1]:2', received ''"),
        ("-oProxyCommand=x", "expected a host, .* received '-oProxyCommand=x'"),
        ("me@-x:1", "expected a host, .* received 'me@-x:1'"),
        ("fd00::1", "expected a host, .* received 'fd00::1'"),
        ("a b:2", "expected a host, .* received 'a b:2'"),
        ("a:0", "--hosts: expected 1 to 4096 slots, received 'a:0'"),
        ("a:2:3", "expected a host"),
        ("a:x", "expected 1 to 4096 slots, received 'a:x'"),
        ("a:5000", "expected 1 to 4096 slots, received 'a:5000'"),
        ("a:1,b,a:1", "expected each host once, with all its slots, received a twice"),
    ],
)
def test_a_list_that_is_none(text, message):
    with pytest.raises(ClusterConfigError, match=message.replace("[", r"\[")):
        parse_hosts(text)


def test_a_file_in_the_forms_of_open_mpi_and_of_discovery_scripts():
    text = """
    # the rack
    a slots=2 max_slots=4   # the new one
    b:3
    c
    [fd00::1] slots=2
    """
    names = {host.name: host.slots for host in parse_host_lines(text, "rack.txt")}
    assert names == {"a": 2, "b": 3, "c": 1, "[fd00::1]": 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n# nothing\n", "rack.txt: expected a host or more, received none"),
        ("a\nb cores=2", "rack.txt, line 2: expected 'HOST', .* received 'b cores=2'"),
        ("a:2 slots=3", "rack.txt, line 1: expected 'HOST', .* received 'a:2 slots=3'"),
        ("a slots=", "rack.txt, line 1: expected 1 to 4096 slots, received 'a slots='"),
        ("a\na", "rack.txt: expected each host once"),
    ],
)
def test_a_file_that_is_none(text, message):
    with pytest.raises(ClusterConfigError, match=message):
        parse_host_lines(text, "rack.txt")


def test_own_names_and_loopback_need_no_ssh():
    own = {"node1.example.org", "node1"}
    names = ("localhost", "127.0.0.1", "[::1]", "node1", "node2", "me@node1", "me@localhost")
    needs_none = [name for name in names if Host(name).is_this_machine(own)]
    assert needs_none == ["localhost", "127.0.0.1", "[::1]", "node1"]
    assert Host("me@node1").listens_at(4) == "node1:4"
    assert Host("localhost").listens_at(4) == "127.0.0.1:4"


def test_training_tasks_fill_the_hosts_and_the_others_go_round():
    roles = ["chief", "worker", "worker", "ps", "ps", "evaluator", "data_dispatcher"]
    roles += ["data_worker"] * 4
    hosts = [Host("a", 2), Host("b", 1), Host("c", 1)]
    assert [host.name for host in place(roles, hosts)] == list("aababbaabca")


def test_more_training_tasks_than_slots():
    message = "--workers: expected at most 3 training tasks, since 2 hosts have 3 slots, received 4"
    with pytest.raises(ClusterConfigError, match=message):
        place(["worker"] * 4, [Host("a", 2), Host("b")])
    one = "expected at most 1 training task, since 1 host has 1 slot, received 2"
    with pytest.raises(ClusterConfigError, match=one):
        place(["worker"] * 2, [Host("a")])


# Two nodes, two cores each, two threads of each core, numbered as Linux numbers them.
CPUS = sorted(Cpu(cpu % 4 // 2, cpu % 4 // 2, cpu % 2, cpu) for cpu in range(8))


@pytest.mark.parametrize(
    ("binding", "tasks", "expected"),
    [
        (Binding.NONE, 2, [None, None]),
        (Binding.CORE, 1, [[0, 4, 1, 5, 2, 6, 3, 7]]),
        (Binding.CORE, 2, [[0, 4, 1, 5], [2, 6, 3, 7]]),
        (Binding.CORE, 3, [[0, 4], [1, 5], [2, 6, 3, 7]]),
        (Binding.CORE, 8, [[0], [4], [1], [5], [2], [6], [3], [7]]),
        (Binding.CORE, 16, [[cpu] for cpu in (0, 4, 1, 5, 2, 6, 3, 7) for _ in range(2)]),
        (Binding.NUMA, 1, [[0, 4, 1, 5, 2, 6, 3, 7]]),
        (Binding.NUMA, 3, [[0, 4, 1, 5], [0, 4, 1, 5], [2, 6, 3, 7]]),
    ],
)
def test_shares_of_cpus(binding, tasks, expected):
    assert shares(CPUS, tasks, binding) == expected


def test_cpus_as_the_kernel_describes_them(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 3, 9})
    for number, node, package, core in ((0, 1, 1, 0), (1, 0, 0, 5), (3, 0, 0, 7)):
        (tmp_path / f"cpu{number}" / f"node{node}").mkdir(parents=True)
        topology = tmp_path / f"cpu{number}" / "topology"
        topology.mkdir()
        (topology / "physical_package_id").write_text(f"{package}\n")
        (topology / "core_id").write_text(f"{core}\n")
    # The folder does not describe CPU 9, and CPU 1 is not ours.
    assert usable_cpus(tmp_path) == [Cpu(0, 0, 7, 3), Cpu(0, 0, 9, 9), Cpu(1, 1, 0, 0)]
