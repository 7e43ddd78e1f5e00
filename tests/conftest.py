"""Which package is under test, and where the modules that tests share are found.

Run from the project's root, the tests use the package of this tree. Run from any other directory
they use the installed one, if there is one: that is how a wheel is tested.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent

if str(TESTS) not in sys.path:
    sys.path.insert(0, str(TESTS))
if Path.cwd() == ROOT or importlib.util.find_spec("tfdist") is None:
    sys.path.insert(0, str(ROOT))


def pytest_report_header() -> str:
    """Shows in pytest's first lines which tfdist is being tested."""
    found = importlib.util.find_spec("tfdist")
    return f"tfdist under test: {found.origin if found else 'none'}"
