"""The ports of tasks whose launcher names none.

All tasks of a job must compute the same ports without a message, and jobs that run at the same time
on one host should not share one. The range 16384..32767 is divided into 512 blocks of 32 ports.
A job has the block of its number, and its tasks on a host take the block's ports in order; more
than 32 tasks continue into the following blocks. Linux gives outgoing connections ports from 32768
on, so none of them takes a task's port.
"""

from __future__ import annotations

import zlib

FIRST = 16384
LAST = 32767
BLOCK = 32
BLOCKS = (LAST + 1 - FIRST) // BLOCK


def port_of(block: int, offset: int) -> int:
    """Returns a port of the range.

    Args:
      block: any number; blocks are taken modulo `BLOCKS`.
      offset: the number of the task among the tasks that share a host.

    Example:
      >>> port_of(0, 0), port_of(1, 2), port_of(511, 32)
      (16384, 16418, 16384)
    """
    return FIRST + (block % BLOCKS * BLOCK + offset) % (LAST + 1 - FIRST)


def block_of(text: str) -> int:
    """Returns the block of a job that is known by a text."""
    return zlib.crc32(text.encode(errors="surrogateescape")) % BLOCKS
