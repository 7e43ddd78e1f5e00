"""Which hosts a job has, how many training tasks each takes, and which task runs where. Pure.

`--hosts a:2,b:2`, a host file and the output of a discovery script name hosts with their *slots*: a
slot is room for one training task. Horovod and Open MPI use the same forms.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence

from tfdist.config.validation import show
from tfdist.errors import ClusterConfigError

# More than any job has. Limits what a mistyped number can cost.
MAX_SLOTS = 4096
# A name or an IPv4 address, after an optional user; or an IPv6 address in brackets. No name begins
# with a dash: ssh would take it for an option.
_WORD = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_NAME = re.compile(rf"(?:{_WORD}@)?(?:{_WORD}|\[[0-9a-fA-F:.]+\])")
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


@dataclasses.dataclass(frozen=True)
class Host:
    """A host of a job.

    Attributes:
      name: the argument of ssh: "node1", "user@node1", "10.0.0.1" or "[fd00::1]".
      slots: the number of training tasks that it takes, 1 or more.
    """

    name: str
    slots: int = 1

    @property
    def address(self) -> str:
        """The name or address at which other hosts reach it: without a user."""
        return self.name.rpartition("@")[2]

    @property
    def is_loopback(self) -> bool:
        """Whether other hosts cannot reach it by its address."""
        return self.address in _LOOPBACK

    def listens_at(self, port: int) -> str:
        """Returns the "host:port" at which the other tasks of the job reach a port there."""
        return f"{'127.0.0.1' if self.is_loopback else self.address}:{port}"

    def is_this_machine(self, own_names: Iterable[str]) -> bool:
        """Whether it needs no ssh; `own_names` are the names of this machine."""
        return "@" not in self.name and (self.is_loopback or self.name in own_names)


def parse_hosts(text: str, source: str = "--hosts") -> tuple[Host, ...]:
    """Returns the hosts of "a:2,b:2"; a host without a number has one slot.

    Args:
      text: the hosts.
      source: the origin of the text, for messages.

    Raises:
      ClusterConfigError: it is no such text, or names a host twice.

    Example:
      >>> parse_hosts("node1:2,node2")
      (Host(name='node1', slots=2), Host(name='node2', slots=1))
    """
    return _distinct([_host(word, source) for word in text.split(",")], source)


def parse_host_lines(text: str, source: str) -> tuple[Host, ...]:
    """Returns the hosts of a host file, or of a discovery script's output.

    Args:
      text: a host on each line, "node1", "node1:2" or "node1 slots=2"; "#" begins a comment. Open
        MPI's `max_slots=N` is accepted, and means nothing here.
      source: the origin of the text, for messages.

    Raises:
      ClusterConfigError: a line is no host, or a host appears twice.
    """
    hosts = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        host = _host(words[0], f"{source}, line {number}")
        for word in words[1:]:
            name, _, value = word.partition("=")
            if name not in ("slots", "max_slots", "max-slots") or (
                name == "slots" and ":" in words[0] and not words[0].endswith("]")
            ):
                raise ClusterConfigError(
                    f"{source}, line {number}: expected 'HOST', 'HOST:SLOTS' or 'HOST slots=N', "
                    f"received {show(line)}"
                )
            slots = _slots(value, line, f"{source}, line {number}")
            if name == "slots":
                host = dataclasses.replace(host, slots=slots)
        hosts.append(host)
    return _distinct(hosts, source)


def place(roles: Sequence[str], hosts: Sequence[Host]) -> list[Host]:
    """Returns the host of each task.

    Training tasks fill one host after the other. Parameter servers and data workers take no slot;
    they go round all hosts, so that no host's network carries all of them. An evaluator is on the
    last host that has training tasks, the dispatcher of data tasks on the first.

    Args:
      roles: the role of each task: "chief", "worker", "ps", "evaluator", "data_dispatcher" or
        "data_worker".
      hosts: the hosts, 1 or more.

    Raises:
      ClusterConfigError: there are more training tasks than slots.
    """
    slots = [host for host in hosts for _ in range(host.slots)]
    training = sum(role in ("chief", "worker") for role in roles)
    if training > len(slots):
        raise ClusterConfigError(
            f"--workers: expected at most {_counted(len(slots), 'training task')}, since "
            f"{_counted(len(hosts), 'host')} {'has' if len(hosts) == 1 else 'have'} "
            f"{_counted(len(slots), 'slot')}, received {training}"
        )
    used = slots[:training]
    counts = {"ps": 0, "data_worker": 0}
    placed = []
    for role in roles:
        if role in ("chief", "worker"):
            placed.append(slots.pop(0))
        elif role in counts:
            placed.append(hosts[counts[role] % len(hosts)])
            counts[role] += 1
        else:
            placed.append(used[-1] if role == "evaluator" else used[0])
    return placed


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _host(word: str, source: str) -> Host:
    name, colon, slots = word.strip().rpartition(":")
    # The colons of an IPv6 address are inside its brackets.
    if not colon or "]" in slots:
        name, slots = word.strip(), "1"
    if not _NAME.fullmatch(name):
        raise ClusterConfigError(
            f"{source}: expected a host, as in 'node1:2' or '[fd00::1]:2', received {show(word)}"
        )
    return Host(name, _slots(slots, word, source))


def _slots(text: str, whole: str, source: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text) or not 1 <= int(text) <= MAX_SLOTS:
        raise ClusterConfigError(
            f"{source}: expected 1 to {MAX_SLOTS} slots, received {show(whole)}"
        )
    return int(text)


def _distinct(hosts: Sequence[Host], source: str) -> tuple[Host, ...]:
    if not hosts:
        raise ClusterConfigError(f"{source}: expected a host or more, received none")
    seen: set[str] = set()
    for host in hosts:
        if host.name in seen:
            raise ClusterConfigError(
                f"{source}: expected each host once, with all its slots, received {host.name} twice"
            )
        seen.add(host.name)
    return tuple(hosts)
