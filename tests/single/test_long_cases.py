"""The marker `long`: which cases it holds for, and that each mark has cases and covers."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from support.long_cases import Case, covers, marks_without_cases, missing_cover

TESTS = Path(__file__).resolve().parents[1]


def cases(*marks: pytest.MarkDecorator, parameters: tuple[str, ...] = ("a-1", "a-2", "b-1")):
    return [Case("test_x.py::test_f", name, tuple(m.mark for m in marks)) for name in parameters]


def long(*marks: pytest.MarkDecorator) -> list[str]:
    return [case.parameters for case in cases(*marks) if case.is_long]


def wrong(*marks: pytest.MarkDecorator) -> list[str]:
    return list(marks_without_cases(cases(*marks)))


def test_patterns_choose_cases():
    mark = pytest.mark.long
    assert long() == []
    assert long(mark(covered_by="x")) == ["a-1", "a-2", "b-1"]
    assert long(mark("a-*", covered_by="x")) == ["a-1", "a-2"]
    assert long(mark("a-*", usual="*-2", covered_by="x")) == ["a-1"]
    assert long(mark(usual=("a-1", "b-1"), covered_by="x")) == ["a-2"]
    assert long(mark("a-1", covered_by="x"), mark("b-*", covered_by="x")) == ["a-1", "b-1"]


def test_a_pattern_without_a_case_is_named():
    mark = pytest.mark.long
    assert wrong(mark("a-*", usual="a-2", covered_by="the other cases")) == []
    (one,) = wrong(mark("a-*", "c-*", covered_by="the other cases"))
    assert "test_x.py::test_f: no case matches 'c-*'" in one and "'b-1'" in one
    (one,) = wrong(mark(usual=("a-1", "a-3"), covered_by="the other cases"))
    assert "no case matches 'a-3'" in one


def test_the_other_cases_must_exist():
    mark = pytest.mark.long
    assert wrong(mark(covered_by="test_g")) == []
    (one,) = wrong(mark(covered_by="test_g, the other cases"))
    assert "'the other cases' cover it, but all its cases are long" in one
    (one,) = wrong(mark("a-*", covered_by="test_g"), mark("b-*", covered_by="test_g"))
    assert "leave the patterns out" in one


def test_a_cover_exists_and_is_not_long(tmp_path):
    mine = tmp_path / "test_mine.py"
    mine.write_text(
        "import pytest\n"
        "@pytest.mark.long(covered_by='test_usual')\ndef test_long(): ...\n"
        "@pytest.mark.long('a', covered_by='the other cases')\ndef test_partly(): ...\n"
        "def test_usual(): ...\n"
    )
    (tmp_path / "one").mkdir()
    (tmp_path / "one/test_module.py").write_text(
        "pytestmark = [pytest.mark.long(covered_by='x')]\ndef test_it(): ...\n"
    )
    (tmp_path / "one/some_test.cc").touch()
    (tmp_path / "soak").mkdir()
    (tmp_path / "soak/test_soak.py").write_text("def test_it(): ...\n")

    def missing(cover: str) -> str | None:
        return missing_cover(cover, mine, tmp_path)

    for cover in ("the other cases", "test_usual", "test_partly", "one/some_test.cc"):
        assert missing(cover) is None
    assert missing("test_gone") == "there is no function test_gone in test_mine.py"
    assert missing("one/test_gone.py") == "there is no file one/test_gone.py"
    assert missing("one/test_module.py::test_gone") is not None
    for cover in ("test_long", "one/test_module.py", "one/test_module.py::test_it"):
        assert missing(cover) == f"{cover} is long itself"
    assert missing("soak/test_soak.py") == "soak/test_soak.py is in neither tier"


def test_every_mark_of_the_suite_names_covers_that_are_not_long():
    found = 0
    for file in sorted(TESTS.rglob("test_*.py")):
        text = file.read_text()
        if "pytest.mark.long(" not in text or file == Path(__file__).resolve():
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.long":
                given = {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords}
                where = f"{file}:{node.lineno}"
                assert {"covered_by"} <= set(given) <= {"covered_by", "usual"}, where
                parts = covers(pytest.mark.long(**given).mark)
                assert parts, where
                for part in parts:
                    assert missing_cover(part, file, TESTS) is None, where
                found += 1
    assert found > 100
