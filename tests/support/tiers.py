"""The two tiers of the suite: the usual one, and the long one of `scripts/test --all`.

With TEST_TLS=1 the jobs of tests of elastic faults encrypt their connections.
"""

from __future__ import annotations

import os
from typing import TypeVar

Case = TypeVar("Case")

# Set by `scripts/test --all` and `scripts/test --soak`.
LONG = os.environ.get("TEST_LONG") == "1"
# Set by `scripts/test --soak elastic-tls`.
ENCRYPTED = os.environ.get("TEST_TLS") == "1"


def rounds(usual: int, long: int) -> int:
    """Returns the repetitions of a test: `usual`, or `long` in a long run."""
    return long if LONG else usual


def chosen(cases: dict[str, Case], *usual: str) -> dict[str, Case]:
    """Returns the cases of a test that goes through them: the named ones, or all in a long run."""
    return cases if LONG else {name: cases[name] for name in usual}
