"""The marker `long`: cases that only the long tier runs.

    @pytest.mark.long("central-*", usual="central-adam", covered_by="the other cases")

The arguments are shell patterns of parameter ids; without any, all cases are long. `usual` names
exceptions, by one pattern or a tuple. `covered_by` names what tests the same in the usual tier,
separated by commas: "the other cases" of the function, "test_name" of the same file,
"folder/test_file.py" below tests/, or "folder/test_file.py::test_name".
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

OTHER_CASES = "the other cases"


class Case(NamedTuple):
    """One collected test."""

    function: str  # its id without parameters
    parameters: str  # their id, or "" without any
    marks: tuple[pytest.Mark, ...]  # marks named `long`

    @classmethod
    def of(cls, item: pytest.Item) -> Case:
        """Returns the case of a collected item."""
        callspec = getattr(item, "callspec", None)
        parameters = callspec.id if callspec is not None else ""
        function = item.nodeid.removesuffix(f"[{parameters}]") if parameters else item.nodeid
        return cls(function, parameters, tuple(item.iter_markers("long")))

    @property
    def is_long(self) -> bool:
        return any(_holds(mark, self.parameters) for mark in self.marks)


def marks_without_cases(cases: Iterable[Case]) -> Iterator[str]:
    """Yields each mark that does not hold for the cases of a file as it says."""
    by_mark: dict[int, tuple[pytest.Mark, list[Case]]] = {}
    by_function: dict[str, list[Case]] = {}
    for case in cases:
        by_function.setdefault(case.function, []).append(case)
        for mark in case.marks:
            by_mark.setdefault(id(mark), (mark, []))[1].append(case)
    for mark, marked in by_mark.values():
        ids = [case.parameters for case in marked]
        for pattern in (*mark.args, *_usual(mark)):
            if not any(fnmatchcase(name, pattern) for name in ids):
                yield f"{marked[0].function}: no case matches {pattern!r}; its cases are {ids}"
    for function, its_cases in by_function.items():
        long = [case for case in its_cases if case.is_long]
        if len(long) < len(its_cases):
            continue
        if all(mark.args or _usual(mark) for case in long for mark in case.marks):
            yield f"{function}: every case matches; leave the patterns out"
        if any(OTHER_CASES in covers(mark) for case in long for mark in case.marks):
            yield f"{function}: {OTHER_CASES!r} cover it, but all its cases are long"


def covers(mark: pytest.Mark) -> list[str]:
    """Returns the parts of `covered_by`, or none without it."""
    return [part for part in mark.kwargs.get("covered_by", "").split(", ") if part]


def missing_cover(cover: str, file: Path, tests: Path) -> str | None:
    """Returns why a part of `covered_by` in `file` covers nothing, or None; `tests` is the root."""
    if cover == OTHER_CASES:
        return None
    path, _, function = cover.partition("::") if "/" in cover else ("", "", cover)
    covering = tests / path if path else file
    if not covering.is_file():
        return f"there is no file {path}"
    if path.startswith("soak/"):
        return f"{path} is in neither tier"
    if covering.suffix != ".py":
        return None
    usual = _functions(covering)
    if function and function not in usual:
        return f"there is no function {function} in {covering.name}"
    if not (usual[function] if function else any(usual.values())):
        return f"{cover} is long itself"
    return None


@cache
def _functions(file: Path) -> dict[str, bool]:
    """Returns the test functions of a file, and whether each has a case in the usual tier."""
    tree = ast.parse(file.read_text())
    marked = any(
        _is_long_without_patterns(node)
        for statement in tree.body
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "pytestmark"
        for node in ast.walk(statement.value)
    )
    return {
        node.name: not marked and not any(map(_is_long_without_patterns, node.decorator_list))
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def _is_long_without_patterns(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and ast.unparse(node.func) == "pytest.mark.long"
        and not node.args
        and all(keyword.arg != "usual" for keyword in node.keywords)
    )


def _holds(mark: pytest.Mark, parameters: str) -> bool:
    matches = not mark.args or any(fnmatchcase(parameters, pattern) for pattern in mark.args)
    return matches and not any(fnmatchcase(parameters, pattern) for pattern in _usual(mark))


def _usual(mark: pytest.Mark) -> tuple[str, ...]:
    usual = mark.kwargs.get("usual", ())
    return (usual,) if isinstance(usual, str) else tuple(usual)
