"""Many ranks in one process: of the control plane alone, or of the collective engine."""

from __future__ import annotations

import concurrent.futures
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tfdist import ops
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.job.plane import ControlPlane, RendezvousResult

TIMEOUT = 120.0  # seconds


def memory() -> int:
    """The resident bytes of this process."""
    (kilobytes,) = re.findall(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(kilobytes) * 1024


class Ranks:
    """Objects of this process, each called in a thread of its own."""

    def __init__(self, ranks: Sequence[Any]) -> None:
        self.ranks = ranks
        self._threads = concurrent.futures.ThreadPoolExecutor(max(1, len(ranks)))

    def count(self) -> int:
        """The number of ranks; they exist."""
        return len(self.ranks)

    def on_all(self, call: Callable[[Any], Any]) -> list[Any]:
        """Calls a function with each rank at the same time; returns the results."""
        return list(self._threads.map(call, self.ranks))


class ControlRanks(Ranks):
    """Control planes of the ranks `first` to `last` - 1.

    Args:
      addresses: of all ranks.
      secret: the job's.
      first: the first rank.
      last: the rank after the last one.
    """

    def __init__(self, addresses: Sequence[str], secret: bytes, first: int, last: int) -> None:
        settings = Settings(secret=secret, rendezvous_timeout=TIMEOUT)
        self._before = memory()
        super().__init__(
            [
                ControlPlane(Cluster(workers=tuple(addresses), task_index=rank), settings)
                for rank in range(first, last)
            ]
        )

    def meet(self, size: int) -> tuple[int, int]:
        """Meets all ranks; returns the generation, and by how many bytes this process has grown."""

        def rendezvous(plane: ControlPlane) -> RendezvousResult:
            return plane.rendezvous("127.0.0.1:1")

        (result,) = set(self.on_all(rendezvous))
        assert len(result.addresses) == size
        return result.generation, memory() - self._before

    def close(self) -> None:
        """Ends the control planes."""
        self.on_all(lambda plane: plane.close())


class CoreRanks(Ranks):
    """Communicators of the ranks `first` to `last` - 1 of `size`."""

    def __init__(self, first: int, last: int, size: int) -> None:
        self._before = memory()
        super().__init__(
            [ops.Communicator(rank, size, resizable=True) for rank in range(first, last)]
        )

    def addresses(self) -> list[str]:
        """Where the ranks listen."""
        return [f"127.0.0.1:{rank.port}" for rank in self.ranks]

    def connect(self, key: bytes, generation: int, addresses: Sequence[str]) -> None:
        """Connects all ranks of a generation."""
        self.on_all(lambda rank: rank.connect(key, generation, addresses, TIMEOUT))

    def reconfigure(self, first: int, size: int) -> None:
        """Gives the ranks of this process the numbers from `first` on, of `size`."""
        self.on_all(lambda rank: rank.reconfigure(first + self.ranks.index(rank), size))

    def all_reduce(self, elements: int) -> set[float]:
        """Adds up the number 1 of every rank, `elements` times; returns the first sums."""
        import tensorflow as tf

        value = tf.ones([elements])
        return set(self.on_all(lambda rank: float(ops.all_reduce(value, rank, timeout=TIMEOUT)[0])))

    def memory_per_rank(self) -> float:
        """By how many bytes this process has grown for each rank."""
        return (memory() - self._before) / len(self.ranks)
