"""Checks of options. Each raises ClusterConfigError, with the option as `tfdist k8s` has it.

The patterns are of names that Kubernetes takes, of RFC 1123, whose rules the words explain.
"""

from __future__ import annotations

import posixpath
import re

from tfdist.config.validation import show
from tfdist.errors import ClusterConfigError

LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
LABEL_WORDS = (
    "a name of lower-case letters a to z, digits and hyphens, with a letter or digit at both ends"
)
SUBDOMAIN = rf"{LABEL}(\.{LABEL})*"
SUBDOMAIN_WORDS = (
    "a name of lower-case letters a to z, digits, hyphens and dots, with a letter or digit at both "
    "ends and beside each dot"
)


def option(name: str) -> str:
    """Returns the option of `tfdist k8s render` for a field of `JobOptions`."""
    return f"--{name.replace('_', '-')}"


def match(what: str, value: str, pattern: str, expected: str, longest: int = 64) -> None:
    """Checks a text against a pattern and a length."""
    if not isinstance(value, str) or not re.fullmatch(pattern, value) or len(value) > longest:
        raise ClusterConfigError(
            f"{what}: expected {expected}, at most {longest} characters, received {show(value)}"
        )


def text(what: str, value: str) -> None:
    """Checks that a text can be a word of a command, or the value of a variable."""
    # A process cannot be given a zero byte, nor YAML half of a character, which Python makes of a
    # byte of the command line that is no UTF-8.
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise ClusterConfigError(
            f"{what}: expected text of UTF-8 without a zero byte, received {show(value)}"
        )


def path(what: str, value: str) -> None:
    """Checks that a text is the path of a place in a container."""
    is_normal = value.startswith("/") and value != "/" and posixpath.normpath(value) == value
    # A colon ends the path of a mount in some container runtimes.
    if not is_normal or ":" in value or not value.isprintable() or value.startswith("//"):
        raise ClusterConfigError(
            f"{what}: expected an absolute path such as /checkpoints, without '..' and ':', "
            f"received {show(value)}"
        )


def number(what: str, value: object, least: int) -> None:
    """Checks that a value is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ClusterConfigError(
            f"{what}: expected a whole number, {least} or more, received {show(value)}"
        )
