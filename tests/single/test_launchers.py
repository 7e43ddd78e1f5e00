"""The page of tested launchers names tests that exist, and all tests of launchers."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/launchers.md").read_text()
NAMED = re.findall(r"\| `([a-z_/]+\.py)(?:::(\w+))?` \|$", PAGE, re.MULTILINE)


def cases_in(file: Path) -> set[str]:
    return set(re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE))


def test_each_row_names_a_test():
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")][1:]
    assert len(NAMED) == len(rows)
    for file, test in NAMED:
        found = cases_in(ROOT / "tests" / file)
        assert found and (not test or test in found), f"{file}::{test}"


def test_all_tests_of_launchers_have_a_row():
    for file in (ROOT / "tests/parallel/engines").glob("test_*.py"):
        relative = str(file.relative_to(ROOT / "tests"))
        assert cases_in(file) == {test for path, test in NAMED if path == relative}
