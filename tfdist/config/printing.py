"""Texts from other processes, machines and files on a terminal.

A terminal obeys control characters: they move the cursor, set the title, and answer as if the user
had typed. Others order the text from right to left, or end a line where no line ends. All of them
are printed as Python writes them in a string.
"""

from __future__ import annotations

import re

# Sets colours and fonts (SGR of ECMA-48).
_COLOUR = re.compile("\x1b\\[[0-9;:]*m")


def printable(text: str) -> str:
    """Returns a text in which only line breaks control the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def printable_line(text: str) -> str:
    """Returns a text in one line: it cannot begin another one, which would look like ours."""
    return printable(text).replace("\n", "\\n")


def without_colours(text: str) -> str:
    """Returns a line of a program's output, printable, without its colours and tabs."""
    return printable_line(_COLOUR.sub("", text).expandtabs())
