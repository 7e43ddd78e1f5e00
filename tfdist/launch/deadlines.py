"""Actions at given times, each with a name by which it can be cancelled."""

from __future__ import annotations

import time
from collections.abc import Callable


class Deadlines:
    """The actions that are still to come.

    Args:
      clock: returns the time in seconds.

    Example:
      >>> deadlines = Deadlines(clock=lambda: 5.0)
      >>> deadlines.set("hello", 0.0, lambda: print("hello"))
      >>> deadlines.act()
      hello
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due: dict[str, tuple[float, Callable[[], None]]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._due

    @property
    def next(self) -> float | None:
        """The time of the next action; None without one."""
        return min((when for when, _ in self._due.values()), default=None)

    def set(self, name: str, seconds: float, action: Callable[[], None]) -> None:
        """Lets an action follow in some seconds, instead of the former one of this name."""
        self._due[name] = (self._clock() + seconds, action)

    def cancel(self, name: str) -> None:
        """Removes an action, if there is one of this name."""
        self._due.pop(name, None)

    def cancel_all(self, keep: str = "") -> None:
        """Removes all actions but one."""
        self._due = {name: entry for name, entry in self._due.items() if name == keep}

    def act(self) -> None:
        """Calls the actions whose time has come, each once."""
        for name, entry in list(self._due.items()):
            when, action = entry
            # An earlier action may have cancelled or replaced it.
            if when <= self._clock() and self._due.get(name) is entry:
                del self._due[name]
                action()
