"""Exceptions and their tracebacks: tfdist hides its own frames, as Keras hides its frames.

`keras.config.disable_traceback_filtering()` brings both back.
"""

from __future__ import annotations

import functools
import linecache
import os
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

from tfdist.errors import TfdistError

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Shortened = Callable[[types.TracebackType | None], types.TracebackType | None]

_PACKAGE = "tfdist"
_OWN_LINE = re.compile(
    rf'^ *File "{re.escape(str(Path(__file__).parent))}/[^"\n]*", line \d+, in .*\n\n?',
    re.MULTILINE,
)
# A collective that another rank has ended, in the message of a graph's error.
_OF_PEER = re.compile(
    r"^Graph execution error:\n\nDetected at node .*?"
    r"^(rank \d+ of \d+: ended by rank .*?)\n\t \[\[",
    re.MULTILINE | re.DOTALL,
)
_LIBRARIES = (
    *("site-packages", "dist-packages", os.sep + "lib" + os.sep + "python"),
    "<frozen importlib",
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

    The innermost frame stays, which has raised the exception; of tfdist's own exceptions, whose
    message tells all, also the last frames of libraries go. Call it in the outermost function of
    tfdist, whose bare `raise` then adds no frame.
    """
    if are_filtered():
        is_told = isinstance(error, TfdistError)
        for each in followed(error):
            _shorten(each, _of_caller if is_told else _without_own)


def ends_at_caller(function: _Function) -> _Function:
    """Lets the tracebacks of a function's exceptions end at the line that has called it.

    It is for functions at the start of a program, which mostly refuse something: `raise` in tfdist
    then stands for the user's mistake. The innermost frame of any other exception stays.
    """

    @functools.wraps(function)
    def called(*arguments: Any, **keywords: Any) -> Any:
        try:
            return function(*arguments, **keywords)
        except Exception as error:
            if are_filtered():
                is_told = isinstance(error, TfdistError) or _is_raised_here(error.__traceback__)
                for each in followed(error):
                    _shorten(each, _of_caller if is_told else _without_own)
            raise

    return cast(_Function, called)


def _shorten(error: BaseException, shortened: _Shortened) -> None:
    error.__traceback__ = shortened(error.__traceback__)
    # Errors of TensorFlow list the frames in which their op was made.
    if isinstance(message := getattr(error, "_message", None), str):
        told = _OF_PEER.search(message)
        # The cause is in another task, not where this task has made its collective.
        vars(error)["_message"] = told[1] if told else _OWN_LINE.sub("", message)


def _without_own(trace: types.TracebackType | None) -> types.TracebackType | None:
    kept: types.TracebackType | None = None
    for frame, line in reversed(list(traceback.walk_tb(trace))):
        if kept is None or not _is_own(frame):
            kept = types.TracebackType(kept, frame, frame.f_lasti, line)
    return kept


def _of_caller(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Leaves out tfdist's frames, and what libraries do between and below them."""
    kept: types.TracebackType | None = None
    for frame, line in reversed(list(traceback.walk_tb(trace))):
        if not _is_own(frame) and not (kept is None and _is_library(frame)):
            kept = types.TracebackType(kept, frame, frame.f_lasti, line)
    return kept


def _is_raised_here(trace: types.TracebackType | None) -> bool:
    """Whether a `raise` of tfdist is the innermost line."""
    frames = list(traceback.walk_tb(trace))
    if not frames or not _is_own(frames[-1][0]):
        return False
    frame, line = frames[-1]
    return linecache.getline(frame.f_code.co_filename, line).lstrip().startswith("raise ")


def _is_library(frame: types.FrameType) -> bool:
    return any(part in frame.f_code.co_filename for part in _LIBRARIES)


def _is_own(frame: types.FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == _PACKAGE


def note_place(error: BaseException, place: str) -> None:
    """Notes where a training was when an exception ended it, such as "epoch 2, step 17"."""
    vars(error).setdefault(_PLACE, place)


def interruption(error: KeyboardInterrupt, task: str) -> str:
    """Returns the line that stands for the traceback of Ctrl-C, which says nothing to the user."""
    place = vars(error).get(_PLACE)
    return f"{task}: interrupted (KeyboardInterrupt){f' in {place}' if place else ''}"
