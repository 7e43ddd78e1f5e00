"""The order in which pairs of ranks are measured: no two pairs share a host at a time.

The hosts play a round-robin tournament by the circle method: one host stays, the others move one
place around the table after each round, and hosts that sit opposite each other are measured.

    round 0    a b     round 1    a d     round 2    a c
               d c                c b                b d

H hosts need H - 1 rounds, or H if H is odd: then one host pauses in each round.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

Pair = tuple[int, int]


def rounds(hosts: Sequence[str]) -> list[list[Pair]]:
    """Returns the rounds in which each pair of ranks is measured once.

    Args:
      hosts: the host of each rank.

    Returns:
      Rounds of pairs, the lower rank first. In a round no host is in two pairs.
    """
    members: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        members.setdefault(host, []).append(rank)
    ranks = list(members.values())
    within = [list(itertools.combinations(of_host, 2)) for of_host in ranks]
    found = _at_once(within)
    for tables in _tournament(len(ranks)):
        between = [list(itertools.product(ranks[a], ranks[b])) for a, b in tables]
        found += _at_once(between)
    return [[(min(pair), max(pair)) for pair in pairs] for pairs in found]


def _tournament(count: int) -> Iterator[list[Pair]]:
    """Yields rounds in which each of `count` players meets each other one once."""
    players: list[int | None] = [*range(count)]
    if count % 2:
        players.append(None)
    size = len(players)
    for _ in range(size - 1):
        opposite = zip(players[: size // 2], reversed(players[size // 2 :]), strict=True)
        yield [(a, b) for a, b in opposite if a is not None and b is not None]
        players.insert(1, players.pop())


def _at_once(lists: Sequence[Sequence[Pair]]) -> list[list[Pair]]:
    """Returns rounds with the next pair of each list."""
    return [[pair for pair in pairs if pair is not None] for pairs in itertools.zip_longest(*lists)]
