"""The bytes and the messages of one exchange, for each algorithm: pure formulas.

The cost of a message of n bytes is `latency + n / bandwidth`, the model of Thakur, Rabenseifner and
Gropp, Optimization of collective communication operations in MPICH, 2005. Links are full duplex. A
host has one link, which its workers share; worker r runs on host r // per_host.

The time of the additions is left out. For the ring it is (N-1)/N x bytes / bytes added per second.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

# As ops/core/collectives/selector.cc has it.
RECURSIVE_DOUBLING_BYTES = 32 * 1024
HALVING_DOUBLING_BYTES = 8 * 1024 * 1024
HALVING_DOUBLING_WORKERS = (4, 8)
DOUBLE_TREE_BYTES = 1024 * 1024
DOUBLE_TREE_WORKERS = 16
# As ops/collectives/fused.py has it: gradients are reduced in buckets of this size.
BUCKET_BYTES = 4 << 20
ID_BYTES = 8

RING = "ring"
TWO_LEVEL = "two-level"
RECURSIVE_DOUBLING = "recursive doubling"
HALVING_DOUBLING = "halving and doubling"
DOUBLE_TREE = "double tree"
TREE = "tree"


@dataclasses.dataclass(frozen=True)
class Links:
    """The links that carry the bytes.

    Args:
      bandwidth: bytes per second of a host's link, in each direction.
      latency: seconds of a message between hosts, without its bytes.
      local_bandwidth: bytes per second between two workers of a host; used only where hosts have
        several workers.
    """

    bandwidth: float
    latency: float = 0.0
    local_bandwidth: float = math.inf


@dataclasses.dataclass(frozen=True)
class TrafficPhase:
    """A part of an exchange. Network and hosts carry its bytes at the same time.

    Args:
      messages: between hosts, one after the other.
      network: bytes that the busiest link carries in one direction.
      local: bytes that pass between two workers of a host.
    """

    messages: int = 0
    network: float = 0.0
    local: float = 0.0

    def seconds(self, links: Links) -> float:
        """The time of this phase."""
        carried = max(self.network / links.bandwidth, self.local / links.local_bandwidth)
        return self.messages * links.latency + carried


Phases = Sequence[TrafficPhase]


def seconds(phases: Phases, links: Links) -> float:
    """The time of phases that follow each other."""
    return sum(phase.seconds(links) for phase in phases)


def bandwidth_for(phases: Phases, budget: float, links: Links) -> float | None:
    """The bandwidth of a host's link with which the phases take `budget` seconds.

    Args:
      phases: that follow each other.
      budget: seconds.
      links: their latency and local bandwidth count, their bandwidth does not.

    Returns:
      Bytes per second, 0 if no byte passes a link; `None` if no bandwidth suffices.
    """
    budget -= sum(phase.messages for phase in phases) * links.latency
    local = [phase.local / links.local_bandwidth for phase in phases]
    if sum(local) > budget or budget <= 0:
        return None if any(phase.network or phase.local for phase in phases) else 0.0
    # The sum of max(network * x, local) is convex in x = 1 / bandwidth: Newton's method from above
    # ends after at most one step for each phase.
    inverse = math.inf
    while True:
        carried = [
            (phase.network, own)
            for phase, own in zip(phases, local, strict=True)
            if phase.network and phase.network * inverse > own
        ]
        if not carried:
            return 0.0 if inverse == math.inf else 1 / inverse
        rest = budget - (sum(local) - sum(own for _, own in carried))
        next_inverse = rest / sum(network for network, _ in carried)
        if next_inverse <= 0:
            return None
        if next_inverse >= inverse:
            return 1 / inverse
        inverse = next_inverse


def hosts_of(workers: int, per_host: int) -> int:
    """The number of hosts that workers fill."""
    return math.ceil(workers / per_host)


def selected(workers: int, size: float, per_host: int = 1) -> str:
    """The algorithm that tfdist chooses for an all-reduce (docs/reference/algorithms.md).

    Args:
      workers: their number.
      size: bytes of the buffer.
      per_host: workers on each host.
    """
    if size <= RECURSIVE_DOUBLING_BYTES:
        return RECURSIVE_DOUBLING
    if 1 < hosts_of(workers, per_host) < workers:
        return TWO_LEVEL
    if workers in HALVING_DOUBLING_WORKERS and size <= HALVING_DOUBLING_BYTES:
        return HALVING_DOUBLING
    if workers >= DOUBLE_TREE_WORKERS and size <= DOUBLE_TREE_BYTES:
        return DOUBLE_TREE
    return RING


def all_reduce(algorithm: str, workers: int, size: float, per_host: int = 1) -> Phases:
    """An all-reduce of `size` bytes by an algorithm, such as RING.

    Raises:
      ValueError: there is no such algorithm.
    """
    functions = {
        RING: ring,
        TWO_LEVEL: two_level,
        RECURSIVE_DOUBLING: recursive_doubling,
        HALVING_DOUBLING: halving_doubling,
        DOUBLE_TREE: double_tree,
        TREE: tree,
    }
    if algorithm not in functions:
        raise ValueError(f"expected one of {', '.join(functions)}, received {algorithm!r}")
    return functions[algorithm](workers, size, per_host)


def ring(workers: int, size: float, per_host: int = 1) -> Phases:
    """2(N-1) messages; 2(N-1)/N x size, the least that any all-reduce can send.

    P. Patarasuk, X. Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations,
    2009. Neighbours share a host or a pair of hosts, so that a
    link carries one worker's traffic.
    """
    if workers == 1:
        return ()
    carried = 2 * (workers - 1) / workers * size
    if hosts_of(workers, per_host) == 1:
        return (TrafficPhase(local=carried),)
    return (TrafficPhase(2 * (workers - 1), carried, carried if per_host > 1 else 0.0),)


def two_level(workers: int, size: float, per_host: int = 1) -> Phases:
    """A ring of one worker of each host, while the others pass it their values and get the sum.

    The parts overlap, because a chunk is passed on as soon as it is there. Within a host a worker
    sends the buffer once in each direction.
    """
    hosts = hosts_of(workers, per_host)
    local = size if min(workers, per_host) > 1 else 0.0
    if hosts == 1:
        return (TrafficPhase(local=local),) if local else ()
    return (TrafficPhase(2 * (hosts - 1), 2 * (hosts - 1) / hosts * size, local),)


def recursive_doubling(workers: int, size: float, per_host: int = 1) -> Phases:
    """log2 P exchanges of the whole buffer, P being the largest power of two up to N.

    Two more if P < N: the other workers give their values to a partner first, and get the result
    from it at the end (Thakur, Rabenseifner, Gropp 2005).
    """
    power = 1 << (workers.bit_length() - 1)
    phases = [
        _step(((r, r ^ distance) for r in range(power)), size, per_host)
        for distance in _doubled(power)
    ]
    if power < workers:
        others = [(r, r - power) for r in range(power, workers)]
        phases.insert(0, _step(others, size, per_host))
        phases.append(_step([(there, here) for here, there in others], size, per_host))
    return phases


def halving_doubling(workers: int, size: float, per_host: int = 1) -> Phases:
    """log2 P exchanges of a half, a quarter, ... of the buffer, and the same in reverse order.

    Two more of the whole buffer if P < N, as for `recursive_doubling` (Thakur, Rabenseifner, Gropp
    2005).
    """
    power = 1 << (workers.bit_length() - 1)
    halving = [
        _step(((r, r ^ bit) for r in range(power)), bit / power * size, per_host)
        for bit in reversed(_doubled(power))
    ]
    phases = [*halving, *reversed(halving)]
    if power < workers:
        others = [(r, r - power) for r in range(power, workers)]
        phases.insert(0, _step(others, size, per_host))
        phases.append(_step([(there, here) for here, there in others], size, per_host))
    return phases


def double_tree(workers: int, size: float, per_host: int = 1) -> Phases:
    """Two binary trees, each of which sums up and broadcasts half of the buffer.

    Sanders, Speck, Traff, Two-tree algorithms for full bandwidth broadcast, reduction and scan,
    2009. The steps overlap, because a chunk is passed on as soon as it is there.
    """
    if workers == 1:
        return ()
    between, within = Counter[int](), Counter[int]()  # by host, and by worker: messages sent
    most = 0
    for parents in (_parents(workers, tree) for tree in (0, 1)):
        for child, parent in parents.items():
            is_local = child // per_host == parent // per_host
            for sender in (child, parent):
                if is_local:
                    within[sender] += 1
                else:
                    between[sender // per_host] += 1
        most = max(most, *(_hops(worker, parents, per_host) for worker in range(workers)))
    # A host receives as many messages as it sends: each edge carries one up and one down.
    return (
        TrafficPhase(
            2 * most,
            max(between.values(), default=0) * size / 2,
            max(within.values(), default=0) * size / 2,
        ),
    )


def _parents(workers: int, tree: int) -> dict[int, int]:
    """The parent of each worker but the root; see ops/core/algorithms/double_tree.h."""

    def parent_of(place: int) -> int:
        while True:
            low = place & -place
            place = place - low if place & 2 * low else place + low
            if place <= workers:
                return place

    root = 1 << (workers.bit_length() - 1)
    worker_at = lambda place: (place - 1 - tree) % workers  # noqa: E731
    return {
        worker_at(place): worker_at(parent_of(place))
        for place in range(1, workers + 1)
        if place != root
    }


def _hops(worker: int, parents: Mapping[int, int], per_host: int) -> int:
    """The messages between hosts from a worker to the root of its tree."""
    count = 0
    while worker in parents:
        count += worker // per_host != parents[worker] // per_host
        worker = parents[worker]
    return count


def tree(workers: int, size: float, per_host: int = 1) -> Phases:
    """A reduce and a broadcast along the binomial tree: 2 ceil(log2 N) times the whole buffer.

    Thakur, Rabenseifner, Gropp 2005. Not pipelined. tfdist does not choose it
    for an all-reduce.
    """
    up = [
        _step(
            [(r, r - distance) for r in range(distance, workers, 2 * distance)],
            size,
            per_host,
        )
        for distance in _doubled(workers)
    ]
    return [*up, *reversed(up)]


def rows(workers: int, own: float, row_bytes: float, table_rows: int, per_host: int = 1) -> Phases:
    """Gradients of rows: every worker receives the rows of all others.

    Where the rows of all workers exceed twice the table, tfdist reduces the table instead.

    Args:
      workers: their number.
      own: rows of one worker in a step, each once.
      row_bytes: bytes of a row's values; its id has 8 more.
      table_rows: rows of the table.
      per_host: workers on each host.
    """
    if workers * own > 2 * table_rows:
        size = table_rows * row_bytes
        return all_reduce(selected(workers, size, per_host), workers, size, per_host)
    if workers == 1:
        return ()
    # A ring of blocks.
    carried = (workers - 1) * own * (row_bytes + ID_BYTES)
    if hosts_of(workers, per_host) == 1:
        return (TrafficPhase(local=carried),)
    return (TrafficPhase(workers - 1, carried, carried if per_host > 1 else 0.0),)


def pull_and_push(
    workers: int, pulled: float, pushed: float, servers: int, per_host: int = 1
) -> Phases:
    """A pull of all workers from the parameter servers, and later a push of all.

    The busiest link is a server's, with C N / servers bytes in each direction, or, with more
    servers than hosts of workers, a worker host's. Each of the two is a request and an answer.

    Args:
      workers: their number.
      pulled: bytes that one worker pulls in a step.
      pushed: bytes that one worker pushes.
      servers: hosts with a parameter server each, which share the bytes evenly.
      per_host: workers on each host of workers.
    """
    times = max(min(workers, per_host), workers / servers)
    return (TrafficPhase(2, times * pulled), TrafficPhase(2, times * pushed))


def _doubled(end: int) -> list[int]:
    """1, 2, 4, ... below `end`."""
    return [1 << i for i in range((end - 1).bit_length())]


def _step(pairs: Iterable[tuple[int, int]], size: float, per_host: int) -> TrafficPhase:
    """Messages of `size` bytes, each from a worker to a worker, at the same time."""
    hosts = [(here // per_host, there // per_host) for here, there in pairs]
    between = [(here, there) for here, there in hosts if here != there]
    sent, received = (Counter(pair[end] for pair in between) for end in (0, 1))
    busiest = max([*sent.values(), *received.values()], default=0)
    is_local = len(between) < len(hosts)
    return TrafficPhase(1 if between else 0, busiest * size, size if is_local else 0.0)
