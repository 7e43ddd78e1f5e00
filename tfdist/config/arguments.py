"""Types for numbers on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def whole_number(minimum: int) -> Callable[[str], int]:
    """Returns an argparse type: whole numbers of at least `minimum`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if value < minimum:
            raise argparse.ArgumentTypeError(
                f"expected a whole number, {minimum} or more, received {text!r}"
            )
        return value

    return parse


def seconds(text: str) -> float:
    """Parses a finite number of seconds above 0; an argparse type.

    Raises:
      argparse.ArgumentTypeError: the text is no such number.
    """
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected seconds, more than 0, received {text!r}")
    return value
