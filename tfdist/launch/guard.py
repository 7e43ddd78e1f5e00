"""Ends the processes of a launched job whose launcher was killed.

The launcher starts this file as a separate program, before any task. Its standard input is a pipe;
only the launcher and tasks before their exec can write to it. The line "+123" says that process
group 123 has started, "-123" that it has ended. When the pipe closes, the launcher is gone, and
this program kills the remaining groups. Lines that precede the start of this program are not lost.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable

# Shorter than PIPE_BUF, so that lines of several processes do not mix.
STARTED = b"+%d\n"
ENDED = b"-%d\n"


def watch(lines: Iterable[bytes]) -> None:
    """Tracks the groups that `lines` name; kills the remaining ones when the lines end."""
    groups: set[int] = set()
    for line in lines:
        group = int(line[1:])
        if line.startswith(b"+"):
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


if __name__ == "__main__":
    for _number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(_number, signal.SIG_IGN)
    watch(sys.stdin.buffer)
