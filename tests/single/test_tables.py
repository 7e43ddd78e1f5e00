"""The table of files at the head of a package lists its files and folders, each once."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "tfdist"


def listed(room: Path) -> list[str]:
    """The names in the first column of the table in a package's docstring."""
    head = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
    rows = re.findall(r"^\| (`[^|]*) \|", head, re.MULTILINE)
    return [name.rstrip("/") for row in rows for name in re.findall(r"`([^`]+)`", row)]


ROOMS = [
    str(path.parent.relative_to(PACKAGE))
    for path in sorted(PACKAGE.rglob("__init__.py"))
    if listed(path.parent)
]


@pytest.mark.parametrize("room", ROOMS)
def test_a_table_lists_all_files_of_its_room(room):
    there = {
        path.name
        for path in (PACKAGE / room).iterdir()
        if path.name not in ("__init__.py", "__pycache__") and path.suffix in ("", ".py")
    }
    names = listed(PACKAGE / room)
    assert sorted(names) == sorted(set(names))
    assert set(names) == there


def test_the_long_rooms_have_tables():
    assert {"data", "elastic", "horovod", "keras", "keras/session"} <= set(ROOMS)
