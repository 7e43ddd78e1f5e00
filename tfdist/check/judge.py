"""The faults of a job's hosts, by the examinations and measurements.

A rank is compared with the median of all ranks. A link is compared with the median of the ranks'
fastest links: a host with a slow network makes all its links slow, and in a job of three that is
most of them. The fastest link of every other rank shows what the network can do.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence

from tfdist.check.machine import Machine
from tfdist.check.measure import Link, RankClock

SLOW_COMPUTE = 0.7  # of the median speed
SLOW_LINK = 0.5  # of the median bandwidth of the ranks' fastest links
SLOW_LATENCY = 5.0  # times the median of the ranks' shortest latencies
MIN_LATENCY_EXCESS = 1e-3  # s; less is noise
CLOCK_OFFSET = 1.0  # s
BUSY = 2.0  # programs for each processor
# With two ranks it is unknown which one is slow.
_MIN_RANKS = 3


@dataclasses.dataclass(frozen=True)
class Fault:
    """Something that is wrong.

    Attributes:
      is_problem: it has to be repaired; else a warning.
      who: the task or tasks.
      text: the fault, and its remedy.
    """

    is_problem: bool
    who: str
    text: str

    def __str__(self) -> str:
        return f"{'PROBLEM' if self.is_problem else 'warning'}: {self.who}: {self.text}"


def judge(
    names: Sequence[str],
    machines: Sequence[Machine],
    speeds: Sequence[float],
    links: Sequence[Link],
    clocks: Mapping[int, RankClock],
) -> list[Fault]:
    """Returns what is wrong, problems first.

    Args:
      names: of the tasks, by rank.
      machines: of each rank.
      speeds: floating-point operations per second of each rank.
      links: of each pair of ranks.
      clocks: of ranks from 1 on.
    """
    found = [
        Fault(is_problem, name, text)
        for name, machine in zip(names, machines, strict=True)
        for is_problem, texts in ((True, machine.problems), (False, machine.warnings))
        for text in texts
    ]
    found += _busy(names, machines)
    found += _different(names, machines)
    found += _slow_ranks(names, machines, speeds)
    found += _slow_links(names, links)
    found += [
        Fault(
            True,
            names[rank],
            f"its clock is {abs(clock.offset):.1f} s {'ahead of' if clock.offset > 0 else 'behind'}"
            f" the clock of {names[0]}: times in logs and checkpoints cannot be compared; start "
            "NTP",
        )
        for rank, clock in sorted(clocks.items())
        if abs(clock.offset) - clock.error > CLOCK_OFFSET
    ]
    return sorted(found, key=lambda finding: not finding.is_problem)


def _busy(names: Sequence[str], machines: Sequence[Machine]) -> list[Fault]:
    """Machines on which other programs run; the first task of each is named."""
    first = {machine.host: rank for rank, machine in reversed(list(enumerate(machines)))}
    return [
        Fault(
            False,
            names[rank],
            f"{machine.host} is busy: in the last minute {machine.load:.0f} programs wanted its "
            f"{machine.cpus} processors. It measures as slower than it is, and trains slowly, too",
        )
        for rank, machine in enumerate(machines)
        if first[machine.host] == rank and machine.load > BUSY * machine.cpus
    ]


def _different(names: Sequence[str], machines: Sequence[Machine]) -> list[Fault]:
    """The values that differ between ranks; names the first rank that differs from rank 0."""
    found = []
    for what in machines[0].versions:
        versions = [machine.versions[what] for machine in machines]
        if len(set(versions)) == 1:
            continue
        odd = next(i for i, version in enumerate(versions) if version != versions[0])
        text = f"{what} is {versions[odd]}, but {versions[0]} on {names[0]}"
        # Small differences of Python and the kernel do no harm.
        matters = what not in ("kernel", "Python")
        found.append(Fault(matters, names[odd], f"{text}{': install the same' if matters else ''}"))
    libraries = [machine.library for machine in machines]
    same = len({machine.versions["tfdist"] for machine in machines}) == 1
    if same and None not in libraries and len(set(libraries)) > 1:
        odd = next(i for i, library in enumerate(libraries) if library != libraries[0])
        text = f"its op library ({libraries[odd]}) is another build than the library of {names[0]} "
        found.append(Fault(False, names[odd], f"{text}({libraries[0]})"))
    return found


def _slow_ranks(
    names: Sequence[str], machines: Sequence[Machine], speeds: Sequence[float]
) -> list[Fault]:
    if len(speeds) < _MIN_RANKS:
        return []
    median = statistics.median(speeds)
    return [
        Fault(
            True,
            names[rank],
            f"computes slowly: {speed / 1e9:.1f} GFLOP/s, {speed / median:.0%} of the median "
            f"({median / 1e9:.1f}); a problem below {SLOW_COMPUTE:.0%}. Look for other programs on "
            f"{machines[rank].host}, a CPU limit of its container, and throttling by heat",
        )
        for rank, speed in enumerate(speeds)
        if speed < SLOW_COMPUTE * median
    ]


def _slow_links(names: Sequence[str], links: Sequence[Link]) -> list[Fault]:
    found = []
    for is_local in (False, True):
        comparable = [link for link in links if link.is_local == is_local]
        ranks = {rank for link in comparable for rank in link.ranks}
        if len(ranks) < _MIN_RANKS:
            continue
        found += _slow(
            names,
            comparable,
            lambda link: link.bandwidth,
            lambda value, usual: value < SLOW_LINK * usual,
            lambda value, usual: (
                f"{value / 1e6:,.0f} MB/s, {value / usual:.0%} of the usual {usual / 1e6:,.0f} "
                f"MB/s; a problem below {SLOW_LINK:.0%}"
            ),
        )
        found += _slow(
            names,
            comparable,
            lambda link: -link.latency,
            lambda value, usual: (
                value < SLOW_LATENCY * usual and usual - value > MIN_LATENCY_EXCESS
            ),
            lambda value, usual: (
                f"{-value * 1e3:.2f} ms of latency, usual are {-usual * 1e3:.2f} ms; a problem "
                f"above {SLOW_LATENCY:g} times that"
            ),
        )
    return found


def _slow(
    names: Sequence[str],
    links: Sequence[Link],
    good: Callable[[Link], float],
    is_slow: Callable[[float, float], bool],
    describe: Callable[[float, float], str],
) -> list[Fault]:
    """Names ranks all of whose links are slow, and slow links of other ranks; more is better."""
    best: dict[int, float] = {}
    for link in links:
        for rank in link.ranks:
            best[rank] = max(best.get(rank, float("-inf")), good(link))
    usual = statistics.median(best.values())
    slow = {rank for rank, value in best.items() if is_slow(value, usual)}
    advice = "Look at its cable, its port of the switch, and what else uses the network there"
    found = [
        Fault(True, names[rank], f"its links are slow: {describe(best[rank], usual)}. {advice}")
        for rank in sorted(slow)
    ]
    return found + [
        Fault(
            True,
            f"{names[link.ranks[0]]} and {names[link.ranks[1]]}",
            f"their link is slow: {describe(good(link), usual)}. Look at the path between them",
        )
        for link in links
        if not slow & set(link.ranks) and is_slow(good(link), usual)
    ]
