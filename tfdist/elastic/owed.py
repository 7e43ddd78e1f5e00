"""Calls that rank 0 makes alone, and that its successor makes again if rank 0 is lost meanwhile.

Between two units of work rank 0 writes files, and the others do not. Each of them notes the call:

    rank 0      unit 7   save ----x                          killed
    rank 1      unit 7   owes save | unit 8: fails | rank 0: save | unit 8
    rank 2      unit 7   owes save | unit 8: fails |        ----- | unit 8

A unit that is done proves that rank 0 had made its calls, because it takes part in the unit after
them: the owed calls are dropped. A unit that fails leaves no trace, so the successor's variables
have the values of the call, unless something between the call and the unit has changed them. Where
that may be, the members meet right after the call, in a unit that does nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

_log = logging.getLogger("tfdist.elastic")


class OwedCalls:
    """The calls that one member owes, in the order in which rank 0 makes the calls."""

    def __init__(self) -> None:
        self._calls: list[tuple[str, Callable[[], object]]] = []

    def add(self, what: str, call: Callable[[], object]) -> None:
        """Notes a call that rank 0 makes now.

        Args:
          what: it does, for the log.
          call: makes it on this member; is called again if it has failed.
        """
        self._calls.append((what, call))

    def drop(self) -> None:
        """Forgets all calls, which rank 0 has made."""
        self._calls.clear()

    def make(self) -> None:
        """Makes the calls, on the member that is rank 0 now.

        Raises:
          Exception: the exception of a call.
        """
        while self._calls:
            what, call = self._calls[0]
            _log.warning("makes again what rank 0 may not have ended: %s", what)
            call()
            del self._calls[0]
