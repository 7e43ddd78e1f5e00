"""Memory, in the report about a task that was killed without a word.

SIGKILL that no user has sent mostly comes from the kernel, which had no memory left for all
processes, or for the processes of a control group.
"""

from __future__ import annotations

from pathlib import Path

_GROUP_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")  # of versions 2 and 1


def kills(file: Path = Path("/proc/vmstat")) -> int | None:
    """Returns how many processes the kernel has killed for lack of memory since it has started.

    Args:
      file: the kernel's counters.

    Returns:
      Their number; None if it is not known.
    """
    try:
        counters = dict(line.split() for line in file.read_text().splitlines())
        return int(counters["oom_kill"])
    except (OSError, ValueError, KeyError):
        return None


def limit(
    groups: Path = Path("/sys/fs/cgroup"), machine: Path = Path("/proc/meminfo")
) -> int | None:
    """Returns the bytes of memory that the processes here may have; None if it is not known.

    Args:
      groups: the control group of a container, as it sees it.
      machine: the kernel's description of the machine's memory.
    """
    found = []
    try:
        first = machine.read_text().splitlines()[0]  # MemTotal: 24000000 kB
        found.append(1024 * int(first.split()[1]))
    except (OSError, ValueError, IndexError):
        pass
    for name in _GROUP_LIMITS:
        try:
            found.append(int((groups / name).read_text()))  # "max" is no limit
        except (OSError, ValueError):
            continue
    return min(found, default=None)


def about_kill(peak: int, total: int | None, kills_before: int | None) -> str:
    """Returns a sentence about a task that SIGKILL has ended.

    Args:
      peak: the most bytes of memory that it had; 0 if that is not known.
      total: see `limit`.
      kills_before: see `kills`, when the job has started.
    """
    parts = []
    if peak:
        of = f" of {total / 1e9:.1f} GB on its host" if total is not None else ""
        parts.append(f"it had {peak / 1e9:.1f} GB of memory at most{of}")
    now = kills()
    if now is not None and kills_before is not None and now > kills_before:
        parts.append(
            f"the kernel has killed {now - kills_before} processes for lack of memory since the "
            "job has started ('dmesg' names them)"
        )
    else:
        parts.append("somebody has killed it, or its container had no memory left")
    return "; ".join(parts)
