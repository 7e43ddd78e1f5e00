"""Which CPUs each task of a host may use: `--bind core`, `numa` or `none`.

Tasks get equal shares of consecutive CPUs, in the order NUMA node, core, hardware thread: the
threads of a core stay together, and no task crosses a node without need. Example: 4 tasks, two
nodes with 4 cores each.

    node     0          1
    cores    0 1  2 3   4 5  6 7
    core     --0- --1-  --2- --3-
    numa     0,1: node 0 2,3: node 1
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

_CPU_FOLDER = Path("/sys/devices/system/cpu")
_T = TypeVar("_T")


class Binding(enum.Enum):
    """The unit that a task is bound to."""

    NONE = "none"
    CORE = "core"
    NUMA = "numa"


@dataclasses.dataclass(frozen=True, order=True)
class Cpu:
    """A CPU that tasks may use.

    Attributes:
      node: its NUMA node.
      package: its package, which the number of its core is relative to.
      core: its core.
      number: its number for the kernel.
    """

    node: int
    package: int
    core: int
    number: int


def usable_cpus(folder: Path = _CPU_FOLDER) -> list[Cpu]:
    """Returns the CPUs that this process may use, in order.

    Args:
      folder: the kernel's description of all CPUs. A CPU that it lacks counts as a core of node 0.
    """
    return sorted(_described(number, folder) for number in os.sched_getaffinity(0))


def shares(cpus: Sequence[Cpu], tasks: int, binding: Binding) -> list[list[int] | None]:
    """Returns the numbers of each task's CPUs; None is no restriction.

    Args:
      cpus: the CPUs that the tasks may use, in order, 1 or more.
      tasks: the number of tasks. If there are more than CPUs (or nodes), some share one.
      binding: the unit that a task is bound to.

    Example:
      >>> shares([Cpu(0, 0, core, core) for core in range(4)], 2, Binding.CORE)
      [[0, 1], [2, 3]]
    """
    if binding is Binding.NONE:
        return [None] * tasks
    if binding is Binding.NUMA:
        units = [list(unit) for _, unit in itertools.groupby(cpus, lambda cpu: cpu.node)]
    else:
        cores = itertools.groupby(cpus, lambda cpu: (cpu.node, cpu.package, cpu.core))
        units = [list(unit) for _, unit in cores]
        if len(units) < tasks:
            units = [[cpu] for cpu in cpus]
    return [[cpu.number for unit in share for cpu in unit] for share in _split(units, tasks)]


def _split(items: Sequence[_T], parts: int) -> list[Sequence[_T]]:
    """Returns consecutive parts of nearly equal size, each of one item at least."""
    starts = [part * len(items) // parts for part in range(parts + 1)]
    return [items[a : max(a + 1, b)] for a, b in itertools.pairwise(starts)]


def _described(number: int, folder: Path) -> Cpu:
    of_cpu = folder / f"cpu{number}"
    node = min((int(path.name[4:]) for path in of_cpu.glob("node[0-9]*")), default=0)
    package = _number(of_cpu / "topology/physical_package_id", 0)
    return Cpu(node, package, _number(of_cpu / "topology/core_id", number), number)


def _number(path: Path, otherwise: int) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return otherwise
