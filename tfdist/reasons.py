"""The line of an exception's text that tells the reason, for reports of one line.

The first line often tells none: the text of a graph's error begins with the stack that made the
graph, Keras's with the layer that was called, AutoGraph's with a traceback of its own.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

_MAX_TEXT = 1000  # characters
_GRAPH = "Graph execution error"
# Lines of the message of a graph's error that precede and follow the reason.
_AROUND_REASON = (_GRAPH, "Detected at node", "File ", "[[", "(", "->", "<stack traces")
_STAGED = "in user code:"
_OF_LAYER = "Exception encountered when calling"  # the next line has the layer's own error
# Of a model whose variables Keras makes at the first step.
_OF_BUILD = "Unable to automatically build the model."
_QUOTED = "Exception encountered:"
_COLOURS = re.compile("\x1b\\[[0-9;]*m")
# Where TensorFlow has run the op that failed.
_FUNCTION_NODES = re.compile(r"(?:\{\{function_node [^}]*\}\} ?)+")
_KIND = re.compile(r"([A-Za-z_][\w.]*): ?(.*)")


def kind_and_text(error: BaseException) -> tuple[str, str]:
    """Returns the class of an exception and the reason in its text, one line of each.

    Args:
      error: the exception. AutoGraph may have put it in the place of another exception, whose
        class and text are returned then.
    """
    lines = [_COLOURS.sub("", line) for line in str(error).splitlines()]
    kind, text = _found(type(error).__name__, [line for line in lines if line.strip()])
    return kind, _FUNCTION_NODES.sub("", text)[:_MAX_TEXT]


def one_line(error: BaseException) -> str:
    """Returns an exception in one line: "ValueError: a bad row"."""
    kind, text = kind_and_text(error)
    return f"{kind}: {text}" if text else kind


def _found(kind: str, lines: Sequence[str]) -> tuple[str, str]:
    """Returns the class and the reason in lines that are not blank."""
    first = lines[0].strip() if lines else ""
    rest = lines[1:]
    if first.startswith(_GRAPH):
        stripped = [line.strip() for line in lines]
        reasons = [line for line in stripped if not line.startswith(_AROUND_REASON)]
        return kind, (reasons or stripped)[0]
    if first == _STAGED and rest:
        # The frames are indented as the error is, and their code is indented more.
        ends = [line for line in rest if _indent(line) <= _indent(rest[0])]
        error = next((line for line in ends if not line.lstrip().startswith('File "')), None)
        told = None if error is None else _KIND.match(error.strip())
        if error is not None and told is not None:
            after = rest[rest.index(error) + 1 :]
            return _found(told[1].rpartition(".")[2], [told[2], *after] if told[2] else after)
    if first.startswith(_OF_LAYER) and rest:
        return _found(kind, rest)
    if first.startswith(_OF_BUILD):
        # In quotation marks: the text of the error that Keras has met.
        after = [*itertools.dropwhile(lambda line: line.strip() != _QUOTED, rest)][1:]
        if after:
            return _found(kind, _unquoted(after))
    return kind, first


def _unquoted(lines: Sequence[str]) -> Sequence[str]:
    first = lines[0].strip()
    if not first.startswith("'"):
        return lines
    return [first[1:].removesuffix("'") if len(lines) == 1 else first[1:], *lines[1:]]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
