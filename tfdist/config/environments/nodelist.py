"""Slurm's short forms of lists: of hosts, `node[01-03,7],other`, and of counts, `2(x3),1`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from tfdist.config.environments.launched import MAX_PROCESSES
from tfdist.config.validation import show
from tfdist.errors import ClusterConfigError

# A name with any number of brackets, up to a comma outside of them.
_ITEM = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9,-]+\])+")
_PART = re.compile(r"\[([0-9,-]+)\]|([A-Za-z0-9._-]+)")
_RANGE = re.compile(r"([0-9]{1,12})(?:-([0-9]{1,12}))?")
_COUNT = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")


def hosts(text: str, name: str) -> list[str]:
    """Returns the hosts of a list, in its order.

    A number has at least as many digits as the first one of its range: `n[08-10]` is n08, n09, n10.

    Args:
      text: such as "node[01-03,7],rack[1-2]n[0-3],other".
      name: the variable, for messages.

    Raises:
      ClusterConfigError: the text is no such list, or names more than `MAX_PROCESSES` hosts.

    Example:
      >>> hosts("node[01-02,7],r[1-2]n[0-1],other", "SLURM_STEP_NODELIST")
      ['node01', 'node02', 'node7', 'r1n0', 'r1n1', 'r2n0', 'r2n1', 'other']
    """
    found: list[str] = []
    position = 0
    text = text.strip()
    while position < len(text) or not found:
        item = _ITEM.match(text, position)
        end = item.end() if item else position
        if item is None or text[end : end + 1] not in ("", ",") or end + 1 == len(text):
            raise ClusterConfigError(
                f"{name}: expected a list of hosts such as node[01-03,7],other, received "
                f"{show(text)}"
            )
        found += _expanded(item[0], MAX_PROCESSES - len(found), text, name)
        position = end + 1
    return found


def counts(text: str, name: str) -> list[int]:
    """Returns the counts of a list, one for each node.

    Raises:
      ClusterConfigError: the text is no such list, or their sum is above `MAX_PROCESSES`.

    Example:
      >>> counts("2(x3),1", "SLURM_STEP_TASKS_PER_NODE")
      [2, 2, 2, 1]
    """
    found: list[int] = []
    for item in text.strip().split(","):
        match = _COUNT.fullmatch(item)
        repeats = int(match[2] or 1) if match else 0
        if match is None or not int(match[1]) or not repeats:
            raise ClusterConfigError(
                f"{name}: expected tasks per node such as 2(x3),1, received {show(text)}"
            )
        if sum(found) + int(match[1]) * repeats > MAX_PROCESSES:
            raise _too_many("tasks", text, name)
        found += [int(match[1])] * repeats
    return found


def numbers(text: str, name: str) -> list[int]:
    """Returns the numbers of ranges, such as ranges of ports: "12000-12003,12010".

    Raises:
      ClusterConfigError: the text is no such list, or has more than `MAX_PROCESSES` numbers.
    """
    inner = text.strip().removeprefix("[").removesuffix("]")
    return [int(digits) for digits in _numbers(inner, MAX_PROCESSES, text, name)]


def _expanded(item: str, limit: int, text: str, name: str) -> Iterator[str]:
    parts: list[list[str]] = []
    total = 1
    for bracket, literal in _PART.findall(item):
        part = _numbers(bracket, limit, text, name) if bracket else [literal]
        total *= len(part)
        # Checked before the product is formed, which could fill the memory.
        if total > limit:
            raise _too_many("hosts", text, name)
        parts.append(part)
    return map("".join, itertools.product(*parts))


def _numbers(ranges: str, limit: int, text: str, name: str) -> list[str]:
    found: list[str] = []
    for item in ranges.split(","):
        match = _RANGE.fullmatch(item)
        first = int(match[1]) if match else 0
        last = int(match[2] or first) if match else -1
        if match is None or last < first:
            raise ClusterConfigError(
                f"{name}: expected ranges such as 01-03,7, received {show(item)} in {show(text)}"
            )
        if len(found) + last - first + 1 > limit:
            raise _too_many("numbers", text, name)
        found += [f"{number:0{len(match[1])}d}" for number in range(first, last + 1)]
    return found


def _too_many(what: str, text: str, name: str) -> ClusterConfigError:
    return ClusterConfigError(
        f"{name}: expected at most {MAX_PROCESSES} {what}, received more: {show(text)}"
    )
