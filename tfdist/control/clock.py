"""The offset between the steady clocks of two tasks, measured over their control connection.

Steady clocks (`time.monotonic_ns`) begin when a machine starts, or where its time namespace says.
A task asks another one, the *reference*, for the time (Cristian 1989, "Probabilistic Clock
Synchronization"), which answers when it received the question and when it sent the answer
(Mills 1991, "Internet Time Synchronization: The Network Time Protocol"):

    reference          t1 ---- t2            offset      ((t1 - t0) + (t2 - t3)) / 2
                      /          \\           round trip  (t3 - t0) - (t2 - t1)
    this task       t0            t3         error       at most half the round trip

The error is the difference between the two ways. The probe with the shortest round trip has the
smallest bound, so that probes which waited for a processor do not count.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from tfdist.control import messages
from tfdist.control.client import Caller, ControlClient, UnreachableError
from tfdist.errors import TfdistError

_PROBES = 8
# Seconds for which one probe waits.
_WAIT = 1.0


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
        """What to add to a time of this task."""
        return ((self.received - self.asked) + (self.sent - self.answered)) // 2


@dataclasses.dataclass(frozen=True)
class Offset:
    """The clock of the reference, as this task knows it.

    Attributes:
      reference: the domain of the reference's clock, see `domain`.
      at: when it was measured, in ns of this task's clock.
      offset: what to add to a time of this task, in ns.
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


def answer(request: messages.Clock, received: int) -> dict[str, Any]:
    """Answers a probe.

    Args:
      request: the probe.
      received: when it was received, in ns of the steady clock.
    """
    problem = messages.reason_to_refuse(request)
    if problem is not None:
        return {"status": "refused", "reason": problem}
    return {
        "status": "clock",
        "domain": domain(),
        "received": received,
        "sent": time.monotonic_ns(),
    }


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


class ClockClient:
    """Measures the offset of this task's clock to that of a reference.

    The reference is the first task of a list, which all tasks ask. If it has been silent for a
    while, the next one of the list is asked, whose own offset may be known.

    Args:
      caller: this task.
      secret: the shared secret or None.
      addresses: of the tasks that may be the reference, the preferred one first.
      patience: seconds of silence of the preferred one after which others are asked.
    """

    def __init__(
        self,
        caller: Caller,
        secret: bytes | None,
        addresses: Sequence[str],
        patience: float = 30.0,
    ) -> None:
        self._caller = caller
        self._secret = secret
        self._addresses = list(addresses)
        self._patience = patience
        self._asks_others_at = time.monotonic() + patience
        self._clients: dict[str, ControlClient] = {}

    def measure(self, is_wanted: Callable[[], bool] = lambda: True) -> Offset | None:
        """Returns the offset now; `None` if no reference answers.

        A task that shares the clock of the reference has the offset 0, exactly.

        Args:
          is_wanted: the call ends early, with `None`, when this returns False.
        """
        if not self._addresses or self._caller.address == self._addresses[0]:
            return _same_clock()
        for number, address in enumerate(self._addresses):
            if number and (time.monotonic() < self._asks_others_at or not is_wanted()):
                return None
            if address == self._caller.address:
                continue
            try:
                found = self._ask(address, is_wanted)
            except (UnreachableError, TfdistError):
                # It has not started yet, or has ended, or is none of this job: ask the next one.
                self._forget(address)
                continue
            if not number:
                self._asks_others_at = time.monotonic() + self._patience
            # That another task shares this clock tells nothing about the reference's.
            if not number or found is None or found.reference != domain():
                return found
        return None

    def close(self) -> None:
        """Closes the connections; a `measure` under way ends."""
        for address in list(self._clients):
            self._forget(address)

    def _forget(self, address: str) -> None:
        client = self._clients.pop(address, None)
        if client is not None:
            client.close()

    def _ask(self, address: str, is_wanted: Callable[[], bool]) -> Offset | None:
        client = self._clients.get(address)
        if client is None:
            client = ControlClient(self._caller, self._secret, address, f"the task at {address}")
            self._clients[address] = client
        request = messages.Clock(protocol=messages.PROTOCOL, wait=_WAIT)
        probes: list[Probe] = []
        # The first call also connects and fetches a challenge.
        for _ in range(_PROBES + 1):
            asked = time.monotonic_ns()
            found = client.call(messages.CLOCK, request, _WAIT, patient=False)
            answered = time.monotonic_ns()
            reference, received, sent = _fields_of(found)
            if reference == domain():
                return _same_clock()
            probes.append(Probe(asked, received, sent, answered))
            if not is_wanted():
                return None
        return estimate(probes[1:], reference)


def _fields_of(answered: dict[str, Any]) -> tuple[str, int, int]:
    fields = tuple(answered.get(name) for name in ("domain", "received", "sent"))
    if tuple(map(type, fields)) != (str, int, int):
        raise UnreachableError(f"expected the time of a clock, received {str(answered)[:80]}")
    return fields  # type: ignore[return-value]


def _same_clock() -> Offset:
    return Offset(domain(), time.monotonic_ns(), 0, 0)
