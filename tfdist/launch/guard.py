"""Ends the processes of a launched job whose launcher was killed.

The launcher starts this file as a program of its own, before any task. Its standard input is a pipe
of which only the launcher holds the other end. Over it come "+123", process group 123 is there, and
"-123", it has ended. When the pipe closes, the launcher is gone, and the groups that are left
are killed. What the pipe holds is read even if the launcher dies before this program has started.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable

# The same bytes whether the launcher or a task before its exec writes them; shorter than PIPE_BUF,
# so that lines written by several processes are not mixed.
STARTED = b"+%d\n"
ENDED = b"-%d\n"


def watch(lines: Iterable[bytes]) -> None:
    """Keeps the groups named by `lines` in mind; kills those left when the lines end."""
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
