"""The clocks of a timeline's parts, on the clock of one reference.

A task has measured the offset of its clock again and again, so that drift is followed: between two
measurements the offset is interpolated, before the first and after the last it stays.

    offset   |      *----____
             |   __/         *------ ...
             |--*
             +--------------------------> time of this task
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
from collections.abc import Sequence

from tfdist.observe.timeline.parts import Part


@dataclasses.dataclass(frozen=True)
class Alignment:
    """How one part's times become those of the reference.

    Attributes:
      method: "same clock", "measured", or "wall clock" if the reference was never reached: the
        machines' own clocks of the time of day are then compared, however wrong they are.
      error: the largest error of the measured offsets in ns; `None` for wall clocks, whose error
        nobody knows.
      at: when the offset was measured, in ns of the part's clock, ascending; at least one.
      offsets: what to add then, in ns.
    """

    method: str
    error: int | None
    at: Sequence[int]
    offsets: Sequence[int]

    def convert(self, time: int) -> int:
        """Returns a time of the part, in ns, on the clock of the reference."""
        after = bisect.bisect_right(self.at, time)
        if after == 0:
            return time + self.offsets[0]
        if after == len(self.at):
            return time + self.offsets[-1]
        begin, end = self.at[after - 1], self.at[after]
        first, second = self.offsets[after - 1], self.offsets[after]
        return time + first + (second - first) * (time - begin) // (end - begin)


@dataclasses.dataclass(frozen=True)
class Clocks:
    """The clocks of all parts.

    Attributes:
      reference: the clock of the timeline, see `control.clock.domain`.
      alignments: of each part.
      wall_ns: what to add to a time of the reference for the time of day, in ns since 1970.
    """

    reference: str
    alignments: list[Alignment]
    wall_ns: int


def align(parts: Sequence[Part]) -> Clocks:
    """Returns how the times of each part become those of one reference.

    The reference is the clock that most parts have asked for; it may be that of a task without a
    part.

    Args:
      parts: at least one.
    """
    asked = collections.Counter(
        domain for part in parts for domain in {offset.reference for offset in part.offsets}
    )
    reference = asked.most_common(1)[0][0] if asked else parts[0].header.domain
    known = [_measured(part, reference) for part in parts]
    first = next(index for index, alignment in enumerate(known) if alignment is not None)
    wall = _wall(parts[first], known[first])
    return Clocks(
        reference,
        [
            alignment or Alignment("wall clock", None, [0], [_wall(part, None) - wall])
            for part, alignment in zip(parts, known, strict=True)
        ],
        wall,
    )


def _measured(part: Part, reference: str) -> Alignment | None:
    if part.header.domain == reference:
        return Alignment("same clock", 0, [0], [0])
    found = sorted(
        (offset for offset in part.offsets if offset.reference == reference),
        key=lambda offset: offset.at,
    )
    if not found:
        return None
    return Alignment(
        "measured",
        max(offset.error for offset in found),
        [offset.at for offset in found],
        [offset.offset for offset in found],
    )


def _wall(part: Part, alignment: Alignment | None) -> int:
    """Returns what to add to a time of a clock for the time of day that a part has noted."""
    steady = part.header.steady_ns
    return part.header.wall_ns - (steady if alignment is None else alignment.convert(steady))
