"""A job whose ranks run on several hosts, which are network namespaces."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator

from baselines import namespaces, programs
from baselines.processes import Remote, call

from tfdist.config.cluster import Cluster

STREAMED = 64 << 20
PORT, STOCK_PORT = 7100, 7200  # no other process uses the namespaces


class Job:
    """The ranks on the hosts.

    Args:
      network: the hosts.
      per_host: consecutive ranks on each.
    """

    def __init__(self, network: namespaces.Network, per_host: int = 1) -> None:
        self.network = network
        self.size = len(network.hosts) * per_host
        self.host_of = [rank // per_host for rank in range(self.size)]
        self.addresses = [network.addresses[host] for host in self.host_of]

    @contextlib.contextmanager
    def ranks(self, make: Callable, arguments_of: Callable[[int], tuple]) -> Iterator[list[Remote]]:
        """An object in each rank's namespace, each in its own process."""
        with contextlib.ExitStack() as stack:
            started = []
            for rank, host in enumerate(self.host_of):
                namespace = self.network.hosts[host]
                remote = Remote(namespaces.inside, namespace, make, *arguments_of(rank))
                stack.callback(remote.stop)
                started.append(remote)
            yield started

    def tfdist(self, rank: int) -> str:
        workers = tuple(f"{host}:{PORT + i}" for i, host in enumerate(self.addresses))
        return Cluster(workers=workers, task_index=rank).tf_config()

    def stock(self) -> list[str]:
        return [f"{host}:{STOCK_PORT + i}" for i, host in enumerate(self.addresses)]

    @contextlib.contextmanager
    def bare_ring(self) -> Iterator[list[programs.Program]]:
        with contextlib.ExitStack() as stack:
            program = programs.build_bare_ring(stack.enter_context(tempfile.TemporaryDirectory()))
            ranks = []
            for rank, (host, address) in enumerate(zip(self.host_of, self.addresses, strict=True)):
                command = ["ip", "netns", "exec", self.network.hosts[host]]
                command += [program, str(rank), str(self.size), address]
                ranks.append(programs.Program(f"bare ring {rank}", command))
                stack.callback(ranks[-1].stop)
            programs.connect_ring(ranks, self.addresses)
            yield ranks


def measure_streams(network: namespaces.Network) -> dict[str, float]:
    """Bytes per second that bare sockets carry: "one" from a host to another, "all" around."""
    with contextlib.ExitStack() as stack:
        ends = []
        for host, address in zip(network.hosts, network.addresses, strict=True):
            ends.append(Remote(namespaces.inside, host, namespaces.Stream, address))
            stack.callback(ends[-1].stop)
        call(ends, "ready")
        ends[1].begin("receive", STREAMED)
        ends[0].call("send", network.addresses[1], STREAMED)
        alone = ends[1].end()
        for i, end in enumerate(ends):
            end.begin("exchange", network.addresses[(i + 1) % len(ends)], STREAMED)
        return {"one": alone, "all": min(end.end() for end in ends)}
