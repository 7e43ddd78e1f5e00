"""The participant of CONTRIBUTING.md, and its test, run as they are printed."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

from tfdist.keras import session as room

ROOT = Path(__file__).resolve().parents[4]


def test_the_participant_of_the_page(caplog: pytest.LogCaptureFixture, monkeypatch) -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    section = page.partition("## A part of `fit`")[2].partition("\n## ")[0]
    participant, its_test = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    module = types.ModuleType(f"{room.__name__}.longest_step")
    exec(compile(participant, "longest_step.py", "exec"), vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    names: dict = {}
    exec(compile(its_test, "test_longest_step.py", "exec"), names)
    names["test_the_longest_step_of_each_epoch_is_logged"](caplog)
    (text, _) = caplog.messages
    assert re.fullmatch(r"epoch 1: the longest step took 0\.\d{3} s", text)
