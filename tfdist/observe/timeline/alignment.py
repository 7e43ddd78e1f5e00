"""The clocks of a timeline's parts, on the clock of one reference.

A task has measured the offset of its clock again and again, so that drift is followed: between two
measurements the offset is interpolated, before the first and after the last it stays. A delayed
measurement is left out, if an earlier or later one tells more.

    offset   |      *----____
             |   __/         *------ ...
             |--*
             +--------------------------> time of this task
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
from collections.abc import Mapping, Sequence

from tfdist.observe.clock import Offset
from tfdist.observe.timeline.parts import Part

# By how much the clocks of two machines drift apart, at most: 100 us in a second.
_DRIFT = 1e-4


@dataclasses.dataclass(frozen=True)
class Alignment:
    """How one part's times become the reference's.

    Attributes:
      method: "same clock", "measured", or "wall clock" if the reference was never reached: the
        machines' own clocks of the time of day are then compared, however wrong they are.
      error: the largest error of the measured offsets in ns; `None` for wall clocks, whose error
        is unknown.
      at: when the offset was measured, in ns of the part's clock, ascending; at least one.
      offsets: the differences to add then, in ns.
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
      reference: the clock of the timeline, see `observe.clock.domain`.
      alignments: of each part.
      wall_ns: the difference to add to a time of the reference for the time of day, in ns since
        1970.
    """

    reference: str
    alignments: list[Alignment]
    wall_ns: int


def align(parts: Sequence[Part]) -> Clocks:
    """Returns how the times of each part become times of one reference.

    The reference is the clock that most parts have asked for; it may belong to a task without a
    part. Parts that share a clock share its alignment. A clock that was compared with another one
    than the reference is aligned through that one.

    Args:
      parts: at least one.
    """
    asked = collections.Counter(
        domain for part in parts for domain in {offset.reference for offset in part.offsets}
    )
    reference = asked.most_common(1)[0][0] if asked else parts[0].header.domain
    known = {reference: Alignment("same clock", 0, [0], [0])}
    while news := {
        part.header.domain: _measured(_best(part.header.domain, parts, known), known)
        for part in parts
        if part.header.domain not in known and _best(part.header.domain, parts, known)
    }:
        known |= news
    aligned = next(part for part in parts if part.header.domain in known)
    wall = _wall(aligned, known[aligned.header.domain])
    return Clocks(
        reference,
        [
            known.get(part.header.domain)
            or Alignment("wall clock", None, [0], [_wall(part, None) - wall])
            for part in parts
        ],
        wall,
    )


def _best(domain: str, parts: Sequence[Part], known: Mapping[str, Alignment]) -> list[Offset]:
    """Returns the measurements of a clock by one part, of that which has most; maybe none."""
    usable = (
        [offset for offset in part.offsets if offset.reference in known]
        for part in parts
        if part.header.domain == domain
    )
    # Of one part: measurements of two, a moment apart, may differ by more than that moment.
    return max(usable, key=len)


def _measured(offsets: list[Offset], known: Mapping[str, Alignment]) -> Alignment:
    ordered = [
        one
        for one in sorted(offsets, key=lambda offset: offset.at)
        if not any(each.error + _DRIFT * abs(each.at - one.at) < one.error for each in offsets)
    ]
    errors = [offset.error + (known[offset.reference].error or 0) for offset in ordered]
    return Alignment(
        "measured",
        max(errors),
        [offset.at for offset in ordered],
        [known[each.reference].convert(each.at + each.offset) - each.at for each in ordered],
    )


def _wall(part: Part, alignment: Alignment | None) -> int:
    """Returns what to add to a time of a clock for the time of day that a part has noted."""
    steady = part.header.steady_ns
    return part.header.wall_ns - (steady if alignment is None else alignment.convert(steady))
