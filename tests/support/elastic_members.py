"""Several members of one elastic job as threads of one process, for tests of the membership."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import tensorflow as tf
from control_tasks import Background

from tfdist import ops
from tfdist.config.cluster import Cluster
from tfdist.config.elastic import Elastic
from tfdist.config.settings import Settings
from tfdist.elastic.membership import Membership, Timing, World
from tfdist.launch.ports import free_ports

TIMEOUT = 20.0
QUICK = Timing(answer=1.2, grace=2.0, probe=0.2, log=0.5)


def addresses(count: int) -> tuple[str, ...]:
    """Returns free loopback addresses."""
    return tuple(f"127.0.0.1:{port}" for port in free_ports(count))


class Process:
    """A member with its communicator.

    Args:
      known: the addresses of the training tasks.
      index: this task's place among them.
      elastic: the limits.
      description: what all members must agree on.
      secret: the shared secret or None.
      timing: the protocol's times.
      timeout: the rendezvous timeout in seconds.
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
    ) -> None:
        cluster = Cluster(workers=tuple(known), task_index=index)
        settings = Settings(secret=secret, rendezvous_timeout=timeout, elastic=elastic)
        self.index = index
        self.membership = Membership(
            cluster, settings, elastic, description or {"clip": "sum"}, timing=timing
        )
        self.communicator = ops.Communicator(0, 1)

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
        self.membership._closed.set()
        self.membership._state.close()
        self.membership._probes.close()
        self.membership._server.close()
        self.communicator.close()

    def leave(self) -> None:
        """Leaves the job."""
        self.membership.leave()
        self.communicator.close()


@contextlib.contextmanager
def closing() -> Iterator[list[Process]]:
    """A list; the processes that are put into it are closed at the end."""
    processes: list[Process] = []
    try:
        yield processes
    finally:
        for process in processes:
            process.crash()


def together(calls: Sequence) -> list:
    """Runs functions at the same time and returns their results in order."""
    return [call.result() for call in [Background(function) for function in calls]]


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
