"""Calls that a server holds until it can answer them, each woken alone. Without networking.

A thousand ranks wait at rank 0 at the same time. If every arrival woke all of them, the work until
all have come would grow with the square of their number.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

# Seconds for which a call is held at most, whatever it asks for.
_MAX_WAIT = 30.0


class ClientContext:
    """The connection of a call that waits for its answer.

    Args:
      host: the caller's, a numeric address; empty for this process's own calls.
      received: when the request has come, in ns of the steady clock.

    Attributes:
      host, received: as in the arguments.
      disconnected: the connection has broken.
      on_disconnect: is called when it breaks.
    """

    def __init__(self, host: str = "", received: int = 0) -> None:
        self.host = host
        self.received = received
        self.disconnected = False
        self.on_disconnect: Callable[[], None] = lambda: None

    def disconnect(self) -> None:
        """Records that the connection broke."""
        self.disconnected = True
        self.on_disconnect()


class HeldCalls:
    """The calls that wait for a decision.

    Attributes:
      lock: protects what decides; the caller of each method below holds it.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._held: dict[ClientContext, threading.Condition] = {}

    def hold(self, context: ClientContext, seconds: float, decided: Callable[[], bool]) -> None:
        """Waits, without the lock, until the call is decided.

        Args:
          context: the call's connection; the wait ends when it breaks.
          seconds: for which the call may be held; 30 at most.
          decided: is called with the lock, now and when the call is woken.
        """
        changed = threading.Condition(self.lock)

        def wake() -> None:
            with self.lock:
                changed.notify()

        self._held[context] = changed
        context.on_disconnect = wake
        try:
            changed.wait_for(
                lambda: context.disconnected or decided(), max(0.0, min(seconds, _MAX_WAIT))
            )
        finally:
            del self._held[context]

    def wake(self, context: ClientContext) -> None:
        """Lets one call see whether it is decided, if it is held."""
        if context in self._held:
            self._held[context].notify()

    def wake_all(self) -> None:
        """Lets all calls see whether they are decided."""
        for changed in self._held.values():
            changed.notify()
