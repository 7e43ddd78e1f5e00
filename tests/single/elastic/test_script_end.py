"""How a script has ended, as a function of `atexit` finds out."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from support.launching import PACKAGE

BEGIN = """
import atexit, sys
from tfdist.job.script_end import ScriptFrame
def watch():
    frame = ScriptFrame()
    assert not frame.was_left()
    atexit.register(lambda: print("left" if frame.was_left() else "at its end"))
"""
ENDS = {
    "the end": ("watch()\nx = 1", "at its end"),
    "an end in a with": ("with open('/dev/null'):\n    watch()", "at its end"),
    "an end in a try": ("try:\n    watch()\nfinally:\n    x = 1", "at its end"),
    "a caught exception": (
        "watch()\ntry:\n    sys.exit(1)\nexcept SystemExit:\n    pass",
        "at its end",
    ),
    "SystemExit": ("watch()\nraise SystemExit(1)", "left"),
    "SystemExit of main": (
        "def main():\n    watch()\n    return 1\nraise SystemExit(main())",
        "left",
    ),
    "sys.exit": ("watch()\nsys.exit(0)", "left"),
    "an error": ("watch()\n1 / 0", "left"),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("is_module", [False, True], ids=["script", "module"])
def test_ends(end, is_module, tmp_path):
    body, expected = ENDS[end]
    (tmp_path / "train.py").write_text(f"{BEGIN}{body}\n")
    words = ["-m", "train"] if is_module else ["train.py"]
    environment = {**os.environ, "PYTHONPATH": PACKAGE}
    command = [sys.executable, *words]
    found = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=50
    )
    assert found.stdout == f"{expected}\n", found.stderr
