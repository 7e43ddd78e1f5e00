"""The client that asks a reference for its clock; see `clock`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tfdist.config.tls import Tls
from tfdist.control.client import Caller, ControlClient, UnreachableError
from tfdist.errors import TfdistError
from tfdist.observe.clock import CLOCK, ClockRequest, Offset, Probe, domain, estimate

_PROBES = 8
# Seconds for which one probe waits.
_WAIT = 1.0


class ClockClient:
    """Measures the offset of this task's clock to a reference's.

    The reference is the first task of a list, which all tasks ask. If it has been silent for a
    while, the next one of the list is asked, whose own offset may be known.

    Args:
      caller: this task.
      secret: the shared secret or None.
      addresses: of the tasks that may be the reference, the preferred one first.
      patience: seconds of silence of the preferred one after which others are asked.
      tls: the origin of this task's certificate, or None.
    """

    def __init__(
        self,
        caller: Caller,
        secret: bytes | None,
        addresses: Sequence[str],
        patience: float = 30.0,
        tls: Tls | None = None,
    ) -> None:
        self._caller = caller
        self._secret = secret
        self._tls = tls
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
        for index, address in enumerate(self._addresses):
            if index and (time.monotonic() < self._asks_others_at or not is_wanted()):
                return None
            if address == self._caller.address:
                continue
            try:
                found = self._ask(address, is_wanted)
            except (UnreachableError, TfdistError):
                # It has not started yet, or has ended, or is none of this job: ask the next one.
                self._forget(address)
                continue
            if not index:
                self._asks_others_at = time.monotonic() + self._patience
            # That another task shares this clock tells nothing about the reference's.
            if not index or found is None or found.reference != domain():
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
            name = f"the task at {address}"
            client = ControlClient(self._caller, self._secret, address, name, self._tls)
            self._clients[address] = client
        request = ClockRequest(wait=_WAIT)
        probes: list[Probe] = []
        # The first call also connects and fetches a challenge.
        for _ in range(_PROBES + 1):
            asked = time.monotonic_ns()
            found = client.call(CLOCK, request, _WAIT, patient=False)
            answered = time.monotonic_ns()
            reference, received, sent = _fields_of(found)
            if reference == domain():
                return _same_clock()
            probes.append(Probe(asked, received, sent, answered))
            if not is_wanted():
                return None
        return estimate(probes[1:], reference)


def _fields_of(answered: dict[str, object]) -> tuple[str, int, int]:
    fields = tuple(answered.get(name) for name in ("domain", "received", "sent"))
    if tuple(map(type, fields)) != (str, int, int):
        raise UnreachableError(f"expected the time of a clock, received {str(answered)[:80]}")
    return fields  # type: ignore[return-value]


def _same_clock() -> Offset:
    return Offset(domain(), time.monotonic_ns(), 0, 0)
