"""Functions that are called when a module has been imported."""

from __future__ import annotations

import importlib
import sys

import pytest

from tfdist.keras.after_import import after_import


@pytest.fixture
def module(tmp_path, monkeypatch):
    name = "module_of_test_after_import"
    (tmp_path / f"{name}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield name
    sys.modules.pop(name, None)


def test_a_later_import(module):
    seen = []
    after_import(module, lambda: seen.append(sys.modules[module].value))
    assert seen == []
    for _ in range(2):
        assert importlib.import_module(module).value == 1
    assert seen == [1]


def test_an_earlier_import(module):
    seen = []
    importlib.import_module(module)
    after_import(module, lambda: seen.append(1))
    assert seen == [1]


def test_a_question_is_no_import(module):
    seen = []
    after_import(module, lambda: seen.append(1))
    assert importlib.util.find_spec(module) is not None
    assert seen == []
    importlib.import_module(module)
    assert seen == [1]


def test_an_import_that_fails(module, tmp_path):
    seen = []
    (tmp_path / f"{module}.py").write_text("raise ValueError('broken')\n")
    after_import(module, lambda: seen.append(1))
    with pytest.raises(ValueError, match="broken"):
        importlib.import_module(module)
    assert seen == []
    (tmp_path / f"{module}.py").write_text("value = 'mended'\n")
    importlib.invalidate_caches()
    assert importlib.import_module(module).value == "mended"
    assert seen == [1]


def test_a_module_that_is_missing(module):
    after_import("no_such_module_at_all", lambda: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_module_at_all")
