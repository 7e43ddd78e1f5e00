"""Numbers on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def whole_number(least: int) -> Callable[[str], int]:
    """Returns a type for argparse: whole numbers from `least` on."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(
                f"expected a whole number, {least} or more, received {text!r}"
            )
        return value

    return parse


def seconds(text: str) -> float:
    """As a type for argparse: a number of seconds above 0, and finite.

    Raises:
      argparse.ArgumentTypeError: it is not.
    """
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected seconds, more than 0, received {text!r}")
    return value
