"""Whether a script has run to its end, or was left by an exception.

Functions of `atexit` are not told with which exit code the program ends. An unhandled exception and
`sys.exit` can be noted, but `raise SystemExit(1)` cannot: Python tells no handler of it. The
script's own frame can: it remembers its last instruction, which of a script that has run to its end
is a return.
"""

from __future__ import annotations

import dis
import sys
from types import FrameType


class ScriptFrame:
    """The outermost frame of this thread, which runs the script. Make it while the script runs."""

    def __init__(self) -> None:
        self._frame = _outermost()

    def was_left(self) -> bool:
        """Whether an exception has left the script; not while it still runs."""
        frame = self._frame
        if frame is _outermost():
            return False
        return not dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN")


def _outermost() -> FrameType:
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    return frame
