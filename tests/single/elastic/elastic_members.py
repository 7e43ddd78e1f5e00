"""Several members of one elastic job as threads of one process, for tests of the membership."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from support.elastic.control_tasks import Background
from support.patience import PATIENCE, wait_until
from tfdist import ops
from tfdist.config.cluster import Cluster
from tfdist.config.elastic import Elastic
from tfdist.config.settings import Settings
from tfdist.control.client import UnreachableError
from tfdist.elastic.membership import Membership, Timing, World
from tfdist.elastic.protocol.probes import Probes
from tfdist.launch.ports import free_ports

TIMEOUT = 80.0 * PATIENCE
QUICK = Timing(answer=1.2, grace=2.0, probe=0.2, log=0.5)
# For tests in which no process is waited for: they end before one answer is late.
SLOW = Timing(answer=30.0, grace=30.0, probe=0.2, log=0.5)


def addresses(count: int) -> tuple[str, ...]:
    """Returns free loopback addresses."""
    return tuple(f"127.0.0.1:{port}" for port in free_ports(count))


class Process:
    """A member with its communicator.

    Args:
      known: the addresses of the training tasks.
      index: this task's place among them.
      elastic: the limits.
      description: the values that all members must agree on.
      secret: the shared secret or None.
      timing: the protocol's times.
      timeout: the rendezvous timeout in seconds.
      start_timeout: seconds after which a job begins with fewer founders, or None.
    """

    def __init__(
        self,
        known: Sequence[str],
        index: int,
        elastic: Elastic,
        *,
        description: dict[str, str] | None = None,
        secret: bytes | None = None,
        timing: Timing = QUICK,
        timeout: float = TIMEOUT,
        start_timeout: float | None = None,
    ) -> None:
        cluster = Cluster(workers=tuple(known), task_index=index)
        settings = Settings(
            secret=secret,
            rendezvous_timeout=timeout,
            elastic=elastic,
            elastic_start_timeout=start_timeout,
        )
        self.index = index
        self.membership = Membership(
            cluster, settings, elastic, description or {"clip": "sum"}, timing=timing
        )
        self.probes = CutProbes(cluster, secret, timing.answer)
        self.membership._peers.probes = self.probes
        self.address = known[index]
        self.communicator = ops.Communicator(0, 1, resizable=True)

    @property
    def world(self) -> World | None:
        """The present generation."""
        return self.membership.world

    def form(self, **kwargs) -> World:
        """Forms the next generation."""
        return self.membership.form(self.communicator, **kwargs)

    def start(self) -> World:
        """Founds the job or joins it, and forms the first generation of this process."""
        self.membership.begin()
        return self.form()

    def crash(self) -> None:
        """Ends as a killed process does: without a word; all its ports are closed."""
        self.membership._peers.closed.set()
        self.membership._state.close()
        self.probes.close()
        self.membership._server and self.membership._server.close()
        self.communicator.close()

    def leave(self) -> None:
        """Leaves the job."""
        self.membership.leave()
        self.communicator.close()


@contextlib.contextmanager
def closing() -> Iterator[list[Process]]:
    """A list; the processes that are put into it are closed at the end."""
    processes: list[Process] = []
    # The garbage of earlier tests stays: the destructor of a tf.data iterator may wait for a minute
    # (see data/background_release.py), in the thread that happens to collect it.
    gc.disable()
    try:
        yield processes
    finally:
        for process in processes:
            process.crash()
        gc.enable()


def together(calls: Sequence) -> list:
    """Runs functions at the same time and returns their results in order."""
    return [call.result() for call in [Background(function) for function in calls]]


def founded(
    processes: list[Process],
    count: int,
    elastic: Elastic | None = None,
    *,
    known: Sequence[str] = (),
    **kwargs: Any,
) -> Sequence[str]:
    """Founds a job of `count` processes; returns the addresses that they know."""
    known = known or addresses(count)
    processes.extend(Process(known, i, elastic or Elastic(), **kwargs) for i in range(count))
    worlds = together([process.start for process in processes])
    assert [world.generation for world in worlds] == [1] * count
    check(processes, worlds)
    return known


def joining(
    processes: list[Process], known: Sequence[str], index: int, elastic: Elastic, **kwargs: Any
) -> Background:
    """Starts a newcomer; returns its call of `form` once it waits at the leader."""
    newcomer = Process(known, index, elastic, **kwargs)
    processes.append(newcomer)
    assert newcomer.membership.begin() is None
    call = Background(newcomer.form)
    here = newcomer.membership.process
    wait_until(
        lambda: call.done() or any(p.membership._state._arrived.has(here) for p in processes),
        "the newcomer's arrival",
    )
    assert not call.done()
    return call


def formed_with_newcomers(members: Sequence[Process], size: int) -> list[World]:
    """Forms generations until newcomers make one of this size; returns the members' worlds.

    On a busy machine a newcomer may come too late, or answer too late, for the first one.
    """
    while True:
        worlds = together([process.form for process in members])
        if worlds[0].size == size:
            return worlds
        check(members, worlds)
        wait_until(members[0].membership.newcomers_wait, "the arrival")


def formed(processes: Sequence[Process], *, newcomers: Sequence[int] = ()) -> list[World]:
    """Forms the next generation of processes, and checks that it can be used."""
    worlds = together([process.form for process in processes])
    check(processes, worlds, newcomers=newcomers)
    return worlds


def check(
    processes: Sequence[Process], worlds: Sequence[World], *, newcomers: Sequence[int] = ()
) -> None:
    """Checks that all processes have the same world, in this order, and can sum over it."""
    assert [world.rank for world in worlds] == list(range(len(processes)))
    assert len({world.generation for world in worlds}) == 1
    for world in worlds:
        assert [member.process for member in world.members] == [
            process.membership.process for process in processes
        ]
        assert world.newcomers == tuple(newcomers)
    sums = together([lambda p=process: summed(p) for process in processes])
    assert sums == [sum(3.0**p.index for p in processes)] * len(processes)
    for process in processes:
        process.membership.establish()


def summed(process: Process) -> float:
    """Returns the sum of 3 to the power of the tasks' indices over the present generation."""
    value = tf.constant(3.0**process.index, tf.float64)
    return float(ops.all_reduce(value, process.communicator, timeout=TIMEOUT))


class CutProbes(Probes):
    """Probes of a process that cannot reach some addresses, as if they were of other hosts.

    Attributes:
      cut: those addresses.
      distant: addresses of other hosts that can be reached.
    """

    cut: frozenset[str] = frozenset()
    distant: frozenset[str] = frozenset()

    def call(self, address: str, name: str, method: str, request: Any) -> dict[str, Any]:
        """Calls a process that can be reached."""
        if address in self.cut:
            with self._lock:
                silence = self._silence(address)
                silence.asked = silence.failed = time.monotonic()
                silence.unanswered = silence.unanswered or silence.asked
            raise UnreachableError("no route to host")
        return super().call(address, name, method, request)

    def refused(self, address: str) -> bool:
        """Other hosts prove nothing."""
        return address not in self.cut | self.distant and super().refused(address)

    def is_of_this_host(self, address: str) -> bool:
        """Other hosts prove nothing."""
        return address not in self.cut | self.distant and super().is_of_this_host(address)

    def accepts(self, address: str) -> bool:
        """No route to other hosts."""
        return address not in self.cut and super().accepts(address)


def cut(*groups: Sequence[Process]) -> None:
    """Lets processes reach only their own group; one group heals the partition.

    Calls under way between the groups still end.
    """
    everybody = {process.address for group in groups for process in group}
    for group in groups:
        for process in group:
            process.probes.cut = frozenset(everybody - {member.address for member in group})
    for group in groups:
        for process in group:
            if len(groups) > 1:
                process.communicator.abort("the network is cut")
