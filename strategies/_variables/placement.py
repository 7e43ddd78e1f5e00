"""Placement of variables' rows on parameter servers.

A consistent-hash ring (Karger et al., "Consistent Hashing and Random Trees", 1997). Every server
has many points on a circle of 64-bit numbers, its virtual nodes. A variable's name is one point;
the server of the next virtual node holds the variable:

    ..s1....s0..."dense/kernel"..s2....s1....s0..      server 2 holds dense/kernel

Placement depends on name, shape and item size alone, not on the variables placed before. So a
restarted worker, another front end or an evaluator finds every variable without a request, in
whatever order it makes them. Consistent hashing with bounded loads (Mirrokni et al. 2018) would
balance better, but there a variable's server depends on the other variables.

Splitting balances the load instead. Each of n servers holds p // n of p parts, and the first p % n
servers clockwise from the name's point hold one more. An added server takes some position in that
order and moves later servers back, so their shares only shrink: they give up the new server's
share, and nothing moves between old servers. Five parts, where the servers in clockwise order are
1, 2, 0:

    servers 0, 1       server 1 holds three, 0 two         parts on 1 1 0 1 0
    servers 0, 1, 2    servers 1 and 2 hold two, 0 one     parts on 2 1 2 1 0

Adding a server to n servers thus moves 1 / (n + 1) of the bytes. Few variables, or variables of
very different sizes, balance badly; a smaller `max_shard_bytes` improves the balance.
"""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Shard:
    """Elements [first, first + count) of a flattened variable, which one server holds."""

    server: int
    name: str
    first: int
    count: int


class Placement:
    """Places variables on the parameter servers of a job; the same in every process.

    Example:
      >>> placement = Placement(servers=2, max_shard_bytes=1024)
      >>> [shard.count for shard in placement.shards("embeddings", (100, 8), itemsize=4)]
      [200, 200, 200, 200]
    """

    def __init__(
        self, servers: int, max_shard_bytes: int = 32 * 2**20, virtual_nodes: int = 1024
    ) -> None:
        """Makes the ring.

        Args:
          servers: the number of parameter servers, whose indices begin at 0.
          max_shard_bytes: a variable of more bytes is split by rows.
          virtual_nodes: points of each server on the ring; with v of them, the servers' parts of
            the ring differ by about 1 / sqrt(v).

        Raises:
          ValueError: one of them is less than 1.
        """
        _check_positive("Placement", "servers", servers)
        _check_positive("Placement", "max_shard_bytes", max_shard_bytes)
        _check_positive("Placement", "virtual_nodes", virtual_nodes)
        self.servers = servers
        self.max_shard_bytes = max_shard_bytes
        ring = sorted(
            (_point("server", f"{server}/{node}"), server)
            for server in range(servers)
            for node in range(virtual_nodes)
        )
        self._points = [point for point, _ in ring]
        self._holders = [server for _, server in ring]

    def shards(
        self, name: str, shape: Sequence[int], itemsize: int, parts: int | None = None
    ) -> tuple[Shard, ...]:
        """Places a variable: in one shard of its own name, or split by rows of `shape[0]`.

        It is split into the fewest parts of at most `max_shard_bytes`, whose numbers of rows
        differ by at most one. A single row is never split.

        Args:
          name: the variable's name. Its optimizer slots are placed with it: see `renamed`.
          shape: the variable's shape; () for a scalar, and dimensions may be 0.
          itemsize: bytes of one element.
          parts: the number of parts, instead of the fewest; limited to the number of rows.

        Returns:
          The shards, which cover every element once and in order.

        Raises:
          ValueError: a dimension is unknown or negative, or `itemsize` less than 1.
        """
        if any(dimension is None or dimension < 0 for dimension in shape):
            raise ValueError(
                f"placement of {name!r}: expected a shape of known dimensions of at least 0, "
                f"received {tuple(shape)}"
            )
        _check_positive(f"placement of {name!r}", "itemsize", itemsize)
        rows, *row_shape = [int(dimension) for dimension in shape] or [1]
        row = math.prod(row_shape)
        if parts is None:
            parts = 1
            if rows * row * itemsize > self.max_shard_bytes:
                parts = -(-rows // max(1, self.max_shard_bytes // (row * itemsize)))
        parts = max(1, min(parts, rows))
        bounds = [part * rows // parts * row for part in range(parts + 1)]
        return tuple(
            Shard(server, _part_name(name, part, parts), first, end - first)
            for part, (server, (first, end)) in enumerate(
                zip(self._servers_of(name, parts), itertools.pairwise(bounds), strict=True)
            )
        )

    def _servers_of(self, name: str, parts: int) -> list[int]:
        """The server of each part, found by adding the servers one after another."""
        start = bisect.bisect_right(self._points, _point("variable", name))
        if parts == 1:
            return [self._holders[start % len(self._holders)]]
        met = list(dict.fromkeys(self._holders[start:] + self._holders[:start]))
        holders = [0] * parts
        for added in range(1, self.servers):
            servers = added + 1
            held: dict[int, list[int]] = {server: [] for server in met if server < servers}
            for part, server in enumerate(holders):
                held[server].append(part)
            for position, own in enumerate(held.values()):
                surplus = len(own) - (parts // servers + (position < parts % servers))
                # Spread over the server's parts, because neighbouring rows are often used together.
                for i in range(surplus):
                    holders[own[i * len(own) // surplus]] = added
        return holders


def renamed(shards: Sequence[Shard], name: str) -> tuple[Shard, ...]:
    """Returns the shards of a tensor that is placed with a variable, such as an optimizer slot.

    Args:
      shards: all shards of the variable.
      name: the tensor's name; it has the variable's shape.

    Returns:
      Shards of the same elements on the same servers, with names made from `name`.
    """
    return tuple(
        dataclasses.replace(shard, name=_part_name(name, part, len(shards)))
        for part, shard in enumerate(shards)
    )


def balance(placement: Placement, variables: Mapping[str, tuple[Sequence[int], int]]) -> list[int]:
    """Returns the bytes on each server, given (shape, itemsize) of each variable by its name."""
    held = [0] * placement.servers
    for name, (shape, itemsize) in variables.items():
        for shard in placement.shards(name, shape, itemsize):
            held[shard.server] += shard.count * itemsize
    return held


def _part_name(name: str, part: int, parts: int) -> str:
    return name if parts == 1 else f"{name}/rows_{part}_of_{parts}"


def _point(kind: str, label: str) -> int:
    """A label's point on the ring; `hash` would differ between processes."""
    digest = hashlib.blake2b(label.encode(), digest_size=8, person=kind.encode()).digest()
    return int.from_bytes(digest, "big")


def _check_positive(owner: str, name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{owner}: expected {name} of at least 1, received {value}")
