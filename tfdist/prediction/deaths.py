"""The records that may have killed the owners of a part. Pure: no files.

An owner notes its position in the claim before each batch. If it dies, the next owner reads the
note, and does not read ahead any more. It also tries each record that was in work then alone, with
a note before it:

    death 1   noted "fast 256"      records 256 and more were in work: read ahead, mapped, predicted
    death 2   noted "row 300"       record 300 was tried alone
    death 3   noted "row 300"
    death 4   noted "row 300"       record 300 has killed three times, alone: it is parked

A kill from outside hits any record, so the first death proves nothing. Each owner begins with
another record, since the first one also bears the time in which the model warms up.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence

MAX_DEATHS = 3
# A pipeline that reads ahead has in work: mapped records, whole batches, the one in the making, and
# the one in the model.
RECORDS_AHEAD, READ_AHEAD = 64, 2
_BATCHES_AHEAD = READ_AHEAD + 2
# Deaths in one batch whose records have all been tried alone.
_MAX_BATCH_DEATHS = 6
# A prime number, so that the owners' first records are far apart.
_STRIDE = 10_007


@dataclasses.dataclass(frozen=True)
class Death:
    """The end of an owner.

    Attributes:
      kind: "fast": it read ahead; "batch": it had one batch in work; "row": one record.
      first: the first record in work, counted from the beginning of the part.
    """

    kind: str
    first: int

    def __post_init__(self) -> None:
        if self.kind not in ("fast", "batch", "row") or self.first < 0:
            raise ValueError(f"expected the note of an owner, received {self.kind!r} {self.first}")


@dataclasses.dataclass(frozen=True)
class Deaths:
    """The deaths of a part's owners, in their order.

    Attributes:
      batch_size: records of a batch.
      all: the deaths.
    """

    batch_size: int
    all: Sequence[Death] = ()

    @property
    def is_careful(self) -> bool:
        """Whether an owner has died, so that the next one does not read ahead."""
        return bool(self.all)

    def and_one(self, kind: str, first: int) -> Deaths:
        """Returns these deaths and another one."""
        return dataclasses.replace(self, all=(*self.all, Death(kind, first)))

    def parked(self) -> set[int]:
        """Returns the records that have killed their owners."""
        alone = Counter(death.first for death in self.all if death.kind == "row")
        return {row for row, deaths in alone.items() if deaths >= MAX_DEATHS}

    def order(self, begin: int, end: int) -> list[int]:
        """Returns the records from `begin` to `end` - 1 as the next owner tries them."""
        first = begin + _STRIDE * len(self.all) % (end - begin)
        return [*range(first, end), *range(begin, first)]

    def is_suspect(self, begin: int, end: int) -> bool:
        """Whether a record from `begin` to `end` - 1 was in work at a death."""
        return any(work.start < end and begin < work.stop for work in map(self._in_work, self.all))

    def deadly_batches(self) -> Iterator[int]:
        """Yields the first records of batches that kill although no single record of them does."""
        for first in sorted({death.first for death in self.all if death.kind == "batch"}):
            if self.all.count(Death("batch", first)) >= _MAX_BATCH_DEATHS:
                yield first

    def _in_work(self, death: Death) -> range:
        if death.kind == "row":
            return range(death.first, death.first + 1)
        if death.kind == "batch":
            return range(death.first, death.first + self.batch_size)
        ahead = _BATCHES_AHEAD * self.batch_size + RECORDS_AHEAD
        return range(death.first, death.first + ahead)
