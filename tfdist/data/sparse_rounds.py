"""Rounds of sparse updates without conflicts: Cyclades.

Two updates conflict if they use a common id, a row of an embedding. In each round a batch of
updates is drawn; updates that conflict, directly or through others, form a connected component of
the conflict graph. Each component goes to one worker, which makes its updates in their order:

    batch         0: {a, b}   1: {c}   2: {b, d}   3: {e}   4: {c, f}
    components    {0, 2} by b          {1, 4} by c          {3}
    two workers   0, 2, 3              1, 4

Workers never touch the same row within a round, and wait for each other after it. So their result
equals the result of the serial order 0, 1, 2, 3, 4, to the bit, whatever their speeds. Components
stay small while the batch is small beside 1 / (the largest share of the updates that use one id).

Pan, Lam, Tu, Papailiopoulos, Zhang, Jordan, Ramchandran, Re and Recht, "Cyclades: Conflict-free
asynchronous machine learning", 2016.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Round:
    """The updates of one round.

    Args:
      order: int64 indices of the updates, in the serial order that the result equals.
      parts: for each worker its updates in this order, int64; some may be empty.
      components: the number of connected components.
    """

    order: np.ndarray
    parts: tuple[np.ndarray, ...]
    components: int


def cyclades(
    ids: np.ndarray | Sequence, batch: int, workers: int, seed: int | None = None, epochs: int = 1
) -> Iterator[Round]:
    """Divides sparse updates into rounds, and those into parts that share no ids.

    Every worker makes the same rounds from the same arguments, and makes its own part of each; all
    wait for each other between rounds (`ParameterServerStrategy.wait_for_workers`). An update may
    change only rows of its ids: in a dense layer, which all of them change, all conflict.

    Args:
      ids: the ids that each update uses: integers `[updates]` or `[updates, ids]`, or a sequence of
        one-dimensional arrays, one per update. Equal ids mean the same row: add an offset to
        another table's ids.
      batch: the number of updates in a round; the last one of an epoch may have fewer.
      workers: the number of parts.
      seed: of the order, another one in each epoch; `None` keeps the order of `ids`.
      epochs: how often each update is made.

    Yields:
      The rounds.

    Raises:
      ValueError: an argument is out of range, or the ids have another shape.
      TypeError: the ids are not integers.

    Example:
      >>> for one in tfdist.data.cyclades([[1, 2], [3, 3], [2, 4], [5, 5]], batch=4, workers=2):
      ...     print([part.tolist() for part in one.parts])
      [[0, 2], [1, 3]]
    """
    for name, value in (("batch", batch), ("workers", workers), ("epochs", epochs)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"cyclades: expected {name} of at least 1, received {value!r}")
    flat, ends = _flat(ids)
    return _rounds(flat, ends, batch, workers, seed, epochs)


def _rounds(
    flat: np.ndarray, ends: np.ndarray, batch: int, workers: int, seed: int | None, epochs: int
) -> Iterator[Round]:
    for epoch in range(epochs):
        order = np.arange(len(ends), dtype=np.int64)
        if seed is not None:
            np.random.default_rng([seed, epoch]).shuffle(order)
        for first in range(0, len(order), batch):
            drawn = order[first : first + batch]
            components = _components(flat, ends, drawn)
            yield Round(drawn, _parts(drawn, components, workers), len(components))


def _flat(ids: np.ndarray | Sequence) -> tuple[np.ndarray, np.ndarray]:
    """All ids, and for each update the end of its own."""
    if isinstance(ids, Sequence) and not isinstance(ids, str) and len(ids):
        rows = [np.atleast_1d(np.asarray(row)) for row in ids]
    else:
        whole = np.asarray(ids)
        if whole.ndim not in (1, 2):
            raise ValueError(
                "cyclades: expected ids of shape [updates] or [updates, ids], received "
                f"{whole.shape}"
            )
        rows = list(whole if whole.ndim == 2 else whole[:, np.newaxis])
    for row in rows:
        if row.ndim != 1:
            raise ValueError(f"cyclades: expected a list of ids per update, received {row.shape}")
        if row.size and row.dtype.kind not in "iu":
            raise TypeError(f"cyclades: expected integer ids, received {row.dtype}")
    ends = np.cumsum([row.size for row in rows], dtype=np.int64)
    flat = np.concatenate([np.zeros(0, np.int64), *(row.astype(np.int64) for row in rows)])
    return flat, ends


def _components(flat: np.ndarray, ends: np.ndarray, drawn: np.ndarray) -> list[list[int]]:
    """The positions in `drawn` of each component, by a union-find over the updates."""
    parents = list(range(len(drawn)))

    def root(position: int) -> int:
        while parents[position] != position:
            parents[position] = parents[parents[position]]  # halves the path
            position = parents[position]
        return position

    users: dict[int, int] = {}  # of each id, the first update
    for position, update in enumerate(drawn):
        begin = ends[update - 1] if update else 0
        for used in flat[begin : ends[update]].tolist():
            first = users.setdefault(used, position)
            a, b = root(first), root(position)
            parents[max(a, b)] = min(a, b)
    members: dict[int, list[int]] = {}
    for position in range(len(drawn)):
        members.setdefault(root(position), []).append(position)
    return list(members.values())


def _parts(drawn: np.ndarray, components: list[list[int]], workers: int) -> tuple[np.ndarray, ...]:
    """Gives each component, the largest first, to the worker with the fewest updates."""
    parts: list[list[int]] = [[] for _ in range(workers)]
    for component in sorted(components, key=len, reverse=True):
        min(parts, key=len).extend(component)
    return tuple(drawn[np.array(sorted(part), dtype=np.int64)] for part in parts)
