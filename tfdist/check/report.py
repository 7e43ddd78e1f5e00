"""The report of `tfdist check`, as a table and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence

from tfdist.check.judge import Fault, judge
from tfdist.check.machine import Machine
from tfdist.check.measure import Link, RankClock


@dataclasses.dataclass(frozen=True)
class Report:
    """The results of `tfdist check`.

    Attributes:
      names: of the tasks, by rank.
      machines: of each rank.
      speeds: floating-point operations per second of each rank.
      links: of each pair of ranks.
      clocks: of ranks from 1 on, compared with rank 0.
      findings: the faults, problems first.
    """

    names: Sequence[str]
    machines: Sequence[Machine]
    speeds: Sequence[float]
    links: Sequence[Link]
    clocks: dict[int, RankClock]
    findings: Sequence[Fault]

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        machines: Sequence[Machine],
        speeds: Sequence[float],
        links: Sequence[Link],
        clocks: dict[int, RankClock],
    ) -> Report:
        """Returns a report with the faults."""
        findings = judge(names, machines, speeds, links, clocks)
        return cls(names, machines, speeds, links, clocks, findings)

    @property
    def is_fine(self) -> bool:
        """Whether there is no problem; there may be warnings."""
        return not any(finding.is_problem for finding in self.findings)

    def as_json(self) -> str:
        """Returns one JSON object; seconds, bytes, and bytes and operations per second."""
        workers = [
            {
                "name": name,
                **dataclasses.asdict(machine),
                "flops": speed,
                "clock_offset": 0.0 if rank == 0 else self.clocks[rank].offset,
                "clock_error": 0.0 if rank == 0 else self.clocks[rank].error,
            }
            for rank, (name, machine, speed) in enumerate(
                zip(self.names, self.machines, self.speeds, strict=True)
            )
        ]
        links = [
            {
                "workers": [self.names[rank] for rank in link.ranks],
                "local": link.is_local,
                "latency": link.latency,
                "bandwidth": link.bandwidth,
            }
            for link in self.links
        ]
        findings = [{"problem": f.is_problem, "who": f.who, "text": f.text} for f in self.findings]
        return json.dumps(
            {"ok": self.is_fine, "workers": workers, "links": links, "findings": findings},
            indent=2,
        )

    def as_text(self) -> str:
        """Returns tables, and what is wrong."""
        sections = [self._versions(), self._machines()]
        if self.links:
            sections.append(self._links())
        sections.append([str(finding) for finding in self.findings] or ["nothing is wrong"])
        return "\n\n".join("\n".join(lines) for lines in sections)

    def _versions(self) -> list[str]:
        versions = [
            m.versions
            | {"op library": str(m.library), "connections": m.encryption or "not encrypted"}
            for m in self.machines
        ]
        return [
            f"{what}: {', '.join(sorted({str(version[what]) for version in versions}))}"
            for what in versions[0]
        ]

    def _machines(self) -> list[str]:
        rows = [("task", "host", "load", "GFLOP/s", "clock", "open files", "locked", "free disk")]
        for rank, (name, machine) in enumerate(zip(self.names, self.machines, strict=True)):
            clock = "-"
            if rank in self.clocks:
                clock = f"{self.clocks[rank].offset * 1e3:+.1f} ms"
            rows.append(
                (
                    name,
                    machine.host,
                    f"{machine.load:.1f} of {machine.cpus}",
                    f"{self.speeds[rank] / 1e9:.1f}",
                    clock,
                    "no limit" if machine.open_files is None else f"{machine.open_files:,}",
                    _size(machine.locked_memory, "no limit"),
                    _size(machine.free_disk, "-"),
                )
            )
        return _aligned(rows)

    def _links(self) -> list[str]:
        rows = [("link", "", "latency", "each direction")]
        rows += [
            (
                f"{self.names[link.ranks[0]]} - {self.names[link.ranks[1]]}",
                "same host" if link.is_local else "network",
                f"{link.latency * 1e3:.2f} ms",
                f"{link.bandwidth / 1e6:,.0f} MB/s",
            )
            for link in self.links
        ]
        return _aligned(rows)


def _size(size: int | None, unknown: str) -> str:
    if size is None:
        return unknown
    return f"{size / 1e9:,.1f} GB" if size >= 10**9 else f"{size / 1e6:,.1f} MB"


def _aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    rows = list(rows)
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
