"""The transitions that a drawing of a docstring shows."""

from __future__ import annotations

import re

_ARROW = re.compile(r"--[^>]*?-+> ([A-Z_]+)\s*$")
_SOURCE = re.compile(r"^\s*([A-Z_]+) --")
_FURTHER = re.compile(r"^\s*[|\\]--")


def drawn_transitions(text: str) -> dict[str, set[str]]:
    """Returns the states that follow each state.

    Args:
      text: has a line "SOURCE --event--> TARGET" for the first arrow of a state, and a line
        "|--event--> TARGET" or "\\\\--event--> TARGET" for each further one.
    """
    found: dict[str, set[str]] = {}
    source = ""
    for line in text.splitlines():
        arrow = _ARROW.search(line)
        if not arrow:
            continue
        if first := _SOURCE.match(line):
            source = first[1]
        else:
            assert _FURTHER.match(line) and source, line
        found.setdefault(source, set()).add(arrow[1])
    return found
