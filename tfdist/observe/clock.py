"""The offset between the steady clocks of two tasks, measured over their control connection.

Steady clocks (`time.monotonic_ns`) begin when a machine starts, or where its time namespace says.
A task asks another one, the *reference*, for the time (Cristian 1989, "Probabilistic Clock
Synchronization"), which answers when it received the question and when it sent the answer
(Mills 1991, "Internet Time Synchronization: The Network Time Protocol"):

    reference          t1 ---- t2            offset      ((t1 - t0) + (t2 - t3)) / 2
                      /          \\           round trip  (t3 - t0) - (t2 - t1)
    this task       t0            t3         error       at most half the round trip

The error is the difference between the two ways. The probe with the shortest round trip has the
smallest bound, so that probes which waited for a processor do not count. `clock_client` asks.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Iterable
from pathlib import Path

from tfdist.control.held_calls import ClientContext
from tfdist.control.service import Service


@dataclasses.dataclass(frozen=True)
class ClockRequest:
    """A task asks any other one for its clock."""

    wait: float


CLOCKS = Service("Clocks", 1, "a task of the job")
CLOCK = CLOCKS.method(ClockRequest, is_quick=True)


@dataclasses.dataclass(frozen=True)
class Probe:
    """One question and its answer, in ns of the clocks of this task and of the reference.

    Attributes:
      asked, answered: when this task has sent the question, and received the answer.
      received, sent: when the reference has received the question, and sent the answer.
    """

    asked: int
    received: int
    sent: int
    answered: int

    @property
    def round_trip(self) -> int:
        """The time on the way, in both directions."""
        return (self.answered - self.asked) - (self.sent - self.received)

    @property
    def offset(self) -> int:
        """The nanoseconds to add to a time of this task."""
        return ((self.received - self.asked) + (self.sent - self.answered)) // 2


@dataclasses.dataclass(frozen=True)
class Offset:
    """The clock of the reference, as this task knows it.

    Attributes:
      reference: the domain of the reference's clock, see `domain`.
      at: when it was measured, in ns of this task's clock.
      offset: the difference to add to a time of this task, in ns.
      error: by how much the offset may be wrong, in ns.
    """

    reference: str
    at: int
    offset: int
    error: int


@functools.cache
def domain() -> str:
    """Names the steady clock of this process: processes with the same name share one clock.

    It is one for each start of a kernel and time namespace. Where the kernel tells neither, it is
    this process's own.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/time")
    except OSError:
        return f"process {os.getpid()} {os.urandom(8).hex()}"
    return f"{boot} {namespace}"


def answer(request: ClockRequest, context: ClientContext) -> dict[str, object]:
    """Answers a probe."""
    return {
        "status": "clock",
        "domain": domain(),
        "received": context.received,
        "sent": time.monotonic_ns(),
    }


# Of every task's server.
HANDLERS = {CLOCK: answer}


def estimate(probes: Iterable[Probe], reference: str) -> Offset:
    """Returns the offset that the probe with the shortest round trip gives.

    Args:
      probes: at least one.
      reference: the domain of the clock that they have asked for.
    """
    best = min(probes, key=lambda probe: probe.round_trip)
    # Round up: the half of 1 ns, and of a round trip that was shorter than the clock's steps.
    error = max(1, (best.round_trip + 1) // 2)
    return Offset(reference, best.answered, best.offset, error)
