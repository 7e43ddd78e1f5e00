"""Numbers with units. All prefixes are decimal: 1 MB is 10^6 bytes, 1 Gbit/s is 10^9 bit/s."""

from __future__ import annotations

import argparse
import re
from decimal import Decimal, Overflow

_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)(e[+-]?\d+)?"
_POWERS = {"": 0, "k": 3, "M": 6, "G": 9, "T": 12}
_COUNT_POWERS = {"": 0, "K": 3, "k": 3, "M": 6, "G": 9}
_SECONDS_POWERS = {"": 0, "s": 0, "ms": -3, "us": -6}

RATE_FORM = "a rate above 0 such as 125MB/s or 1Gbit/s (prefixes k, M, G, T are powers of 1000)"
COUNT_FORM = "a number above 0 such as 25600000, 25.6M or 1.5G (K, M, G are powers of 1000)"
SIZE_FORM = "a size above 0 such as 16GB or 800MB (prefixes k, M, G, T are powers of 1000)"
SECONDS_FORM = "seconds such as 0.55, 550ms or 50us"


def count(text: str) -> int:
    """Parses a number of parameters, such as "138.36M"; an argparse type.

    Raises:
      argparse.ArgumentTypeError: the text is no such number.
    """
    found = re.fullmatch(rf"{_NUMBER}([KkMG]?)", text.strip(), re.IGNORECASE | re.ASCII)
    power = _COUNT_POWERS.get(found[3]) if found else None
    value = _scaled(found, power) if found and power is not None else Decimal(0)
    # The limit comes before `int`, which would write out all digits of 1e999999.
    if not 0 < value < Decimal("1e15") or value != int(value):
        raise argparse.ArgumentTypeError(f"expected {COUNT_FORM}, received {text!r}")
    return int(value)


def rate(text: str) -> float:
    """Parses a bandwidth into bytes per second; an argparse type.

    Raises:
      argparse.ArgumentTypeError: the text is no such rate, or has no unit.
    """
    found = re.fullmatch(rf"{_NUMBER} ?([kMGT]?)(B|bit)/s", text.strip(), re.ASCII)
    value = _scaled(found, _POWERS[found[3]]) if found else Decimal(0)
    if found and found[4] == "bit":
        value /= 8
    if not 0 < value < Decimal("1e18"):
        raise argparse.ArgumentTypeError(f"expected {RATE_FORM}, received {text!r}")
    return float(value)


def size(text: str) -> int:
    """Parses a number of bytes, such as "16GB"; an argparse type.

    Raises:
      argparse.ArgumentTypeError: the text is no such size, or has no unit.
    """
    found = re.fullmatch(rf"{_NUMBER} ?([kMGT]?)B", text.strip(), re.ASCII)
    value = _scaled(found, _POWERS[found[3]]) if found else Decimal(0)
    if not 1 <= value < Decimal("1e18"):
        raise argparse.ArgumentTypeError(f"expected {SIZE_FORM}, received {text!r}")
    return int(value)


def duration(text: str) -> float:
    """Parses seconds above 0, with or without a unit; an argparse type.

    Raises:
      argparse.ArgumentTypeError: the text is no such time.
    """
    value = latency(text)
    if value == 0:
        raise argparse.ArgumentTypeError(f"expected {SECONDS_FORM}, above 0, received {text!r}")
    return value


def latency(text: str) -> float:
    """Parses seconds, 0 or more, with or without a unit; an argparse type.

    Raises:
      argparse.ArgumentTypeError: the text is no such time.
    """
    found = re.fullmatch(rf"{_NUMBER} ?(s|ms|us|)", text.strip(), re.ASCII)
    value = _scaled(found, _SECONDS_POWERS[found[3]]) if found else Decimal(-1)
    if not 0 <= value < Decimal("1e9"):
        raise argparse.ArgumentTypeError(f"expected {SECONDS_FORM}, received {text!r}")
    return float(value)


def fraction(text: str) -> float:
    """Parses a number above 0 and below 1, such as an efficiency; an argparse type.

    Raises:
      argparse.ArgumentTypeError: the text is no such number.
    """
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(
            f"expected a number above 0 and below 1 such as 0.9, received {text!r}"
        )
    return value


def show_seconds(value: float) -> str:
    """A time in three digits, such as "7.19 s" or "61.1 ms"."""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if value * factor >= 0.9995:
            return f"{_three_digits(value * factor)} {unit}"
    return f"{_three_digits(value * 1e6)} us"


def show_rate(value: float) -> str:
    """A bandwidth in MB/s, such as "13,584 MB/s", in three digits below 100 MB/s."""
    megabytes = value / 1e6
    return f"{megabytes:,.0f} MB/s" if megabytes >= 100 else f"{_three_digits(megabytes)} MB/s"


def show_bytes(value: float) -> str:
    """A size, such as "553.44 MB"."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if value >= factor:
            return f"{value / factor:,.2f} {unit}"
    return f"{value:,.0f} bytes"


def show_count(value: int) -> str:
    """A number of parameters, such as "138.36 M"."""
    for factor, letter in ((1e9, " G"), (1e6, " M"), (1e3, " K")):
        if value >= factor:
            return f"{value / factor:,.2f}{letter}"
    return f"{value:,}"


def _scaled(found: re.Match[str], power: int) -> Decimal:
    try:
        return Decimal(found[1] + (found[2] or "")).scaleb(power)
    except Overflow:
        return Decimal("Infinity")


def _three_digits(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
