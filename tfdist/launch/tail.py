"""The last lines of a task, for the report of a failure.

TensorFlow logs so much that its lines would be all that is left of a program's own.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence

from tfdist.launch.banners import is_banner

_LINES = 20
# Of absl's and TensorFlow's log: information, warnings and errors. A fatal line may be the reason.
_LOGGED = re.compile(
    r"[IWE]\d{4} \d\d:\d\d:\d+\.\d+\s+\d+ \S+:\d+\] "
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] \S+:\d+\] "
)


class Tail:
    """Keeps the last lines of a task: the program's own, and apart from them TensorFlow's log."""

    def __init__(self) -> None:
        self._own: deque[str] = deque(maxlen=_LINES)
        self._logged: deque[str] = deque(maxlen=_LINES)
        self._was_logged = False

    def append(self, line: str, /) -> None:
        """Takes the next line."""
        # TensorFlow's messages of several lines continue with a tab.
        continues = self._was_logged and line.startswith("\t")
        self._was_logged = continues or is_banner(line) or _LOGGED.match(line) is not None
        (self._logged if self._was_logged else self._own).append(line)

    @property
    def lines(self) -> Sequence[str]:
        """The program's last lines; TensorFlow's if it has printed none of its own."""
        return list(self._own if any(line.strip() for line in self._own) else self._logged)
