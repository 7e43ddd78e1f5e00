"""Exceptions and their tracebacks: tfdist hides its own frames, as Keras hides its frames.

`keras.config.disable_traceback_filtering()` brings both back.
"""

from __future__ import annotations

import re
import sys
import traceback
import types
from collections.abc import Iterator
from pathlib import Path

_PACKAGE = "tfdist"
_OWN_LINE = re.compile(
    rf'^ *File "{re.escape(str(Path(__file__).parent))}/[^"\n]*", line \d+, in .*\n\n?',
    re.MULTILINE,
)
# An interrupted `fit` notes under this name where it was.
_PLACE = "tfdist_place"


def followed(error: BaseException) -> Iterator[BaseException]:
    """Yields an exception, and the exceptions that it was raised from or while handling.

    `raise ... from None` hides some of them only from a printed traceback.
    """
    seen: set[int] = set()
    left = [error]
    while left:
        each = left.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            left.extend(next for next in (each.__context__, each.__cause__) if next is not None)


def are_filtered() -> bool:
    """Whether tracebacks leave out frames of libraries: Keras's setting, which is on by default."""
    keras = sys.modules.get("keras")
    return keras is None or bool(keras.config.is_traceback_filtering_enabled())


def hide_own_frames(error: BaseException) -> None:
    """Takes tfdist's frames out of the tracebacks of an exception and of those before it.

    The innermost frame stays, which has raised the exception. Call it in the outermost function of
    tfdist, whose bare `raise` then adds no frame.
    """
    if are_filtered():
        for each in followed(error):
            each.__traceback__ = _without_own(each.__traceback__)
            # Errors of TensorFlow list the frames in which their op was made.
            if isinstance(message := getattr(each, "_message", None), str):
                vars(each)["_message"] = _OWN_LINE.sub("", message)


def _without_own(trace: types.TracebackType | None) -> types.TracebackType | None:
    kept: types.TracebackType | None = None
    for frame, line in reversed(list(traceback.walk_tb(trace))):
        if kept is None or not _is_own(frame):
            kept = types.TracebackType(kept, frame, frame.f_lasti, line)
    return kept


def _is_own(frame: types.FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == _PACKAGE


def note_place(error: BaseException, place: str) -> None:
    """Notes where a training was when an exception ended it, such as "epoch 2, step 17"."""
    vars(error).setdefault(_PLACE, place)


def interruption(error: KeyboardInterrupt, task: str) -> str:
    """Returns the line that stands for the traceback of Ctrl-C, which says nothing to the user."""
    place = vars(error).get(_PLACE)
    return f"{task}: interrupted (KeyboardInterrupt){f' in {place}' if place else ''}"
