"""Measures the ranks of a job: their speed, their clocks, and the link of each pair.

Each pair has a communicator of its own, whose connections are like any collective's between the
two: TCP between hosts, shared memory within one.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdist import ops
from tfdist.check.rounds import rounds
from tfdist.job.groups import new_group
from tfdist.job.objects import all_gather_object

_MATRIX = 1024
_MULTIPLICATIONS = 9
_EXCHANGES = 30
_SMALL_BYTES, _LARGE_BYTES = 1 << 20, 8 << 20
_LARGE_RUNS = 3
# A link that needs longer for the small message is slow enough to be measured by it.
_SMALL_SECONDS = 0.25


@dataclasses.dataclass(frozen=True)
class Link:
    """The link of two ranks.

    Attributes:
      ranks: the two, the lower one first.
      is_local: whether they are on one host.
      latency: median seconds of an exchange of 4 bytes.
      bandwidth: bytes per second in each direction, while both send.
    """

    ranks: tuple[int, int]
    is_local: bool
    latency: float
    bandwidth: float


@dataclasses.dataclass(frozen=True)
class RankClock:
    """A rank's clock, compared with rank 0's clock.

    Attributes:
      offset: seconds that it is ahead.
      error: the largest possible error of `offset`.
    """

    offset: float
    error: float


def multiply() -> None:
    """Multiplies two matrices of 1024 x 1024 float32."""
    matrix = tf.ones([_MATRIX, _MATRIX])
    tf.matmul(matrix, matrix).numpy()


def speed(work: Callable[[], None] = multiply) -> float:
    """Returns this process's floating-point operations per second, in `multiply`."""
    times = []
    for _ in range(_MULTIPLICATIONS + 1):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    # The first one starts threads and allocates memory.
    return 2 * _MATRIX**3 / statistics.median(times[1:])


def speeds(communicator: ops.Communicator, hosts: Sequence[str]) -> list[float]:
    """Returns the speed of each rank. Ranks of one host take turns, different hosts do not wait."""
    rank = communicator.rank
    turn = hosts[:rank].count(hosts[rank])
    own = 0.0
    for now in range(max(hosts.count(host) for host in hosts)):
        ops.barrier(communicator, label=f"turn {now} of the hosts' ranks")
        if now == turn:
            own = speed()
    return all_gather_object(own, communicator=communicator)


def links(
    communicator: ops.Communicator, hosts: Sequence[str]
) -> tuple[list[Link], dict[int, RankClock]]:
    """Measures each pair of ranks; no two pairs share a host at a time.

    Args:
      communicator: all ranks.
      hosts: the host of each rank.

    Returns:
      The links, and the clocks of ranks 1 and up.
    """
    own: list[Link] = []
    clocks: dict[int, RankClock] = {}
    for pairs in rounds(hosts):
        for pair in pairs:
            group = new_group(pair, f"check of ranks {pair[0]} and {pair[1]}")
            if group is not None:
                other, mine = pair, group
        if any(communicator.rank in pair for pair in pairs):
            if other[0] == 0:
                clock = _clock(mine)
                if communicator.rank == 0:
                    clocks[other[1]] = clock
            link = Link(other, hosts[other[0]] == hosts[other[1]], *_link(mine))
            if communicator.rank == other[0]:
                own.append(link)
            mine.close()
        ops.barrier(communicator, label="end of a round of pairs")
    every = all_gather_object((own, clocks), communicator=communicator)
    found = sorted((link for links, _ in every for link in links), key=lambda link: link.ranks)
    return found, every[0][1]


def _clock(pair: ops.Communicator) -> RankClock:
    """Compares two clocks by round trips: the shortest one says most (Cristian, 1989)."""
    best = RankClock(0.0, float("inf"))
    for _ in range(_EXCHANGES):
        sent = time.time()
        ops.broadcast(tf.constant(sent, tf.float64), pair, root=0, label="question for the time")
        theirs = ops.broadcast(tf.constant(time.time(), tf.float64), pair, root=1, label="the time")
        received = time.time()
        half = (received - sent) / 2
        if half < best.error:
            best = RankClock(float(theirs) - (sent + half), half)
    return best


def _link(pair: ops.Communicator) -> tuple[float, float]:
    """Returns the latency and the bandwidth between two ranks."""
    token = tf.zeros([1])
    times = [_seconds(lambda: ops.all_reduce(token, pair)) for _ in range(_EXCHANGES)]
    latency = statistics.median(times)
    seconds = _sending(pair, _SMALL_BYTES)
    # Both must decide the same.
    slowest = float(ops.all_reduce(tf.constant(seconds), pair, "max"))
    if slowest > _SMALL_SECONDS:
        return latency, _SMALL_BYTES / slowest
    runs = [_sending(pair, _LARGE_BYTES) for _ in range(_LARGE_RUNS)]
    seconds = float(ops.all_reduce(tf.constant(statistics.median(runs)), pair, "max"))
    return latency, _LARGE_BYTES / seconds


def _sending(pair: ops.Communicator, size: int) -> float:
    data = tf.zeros([size], tf.uint8)
    ops.barrier(pair, label="before a measured exchange")
    return _seconds(lambda: ops.all_gather(data, pair))


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
