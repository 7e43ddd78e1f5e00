"""The commands of docs/dashboard.md run as they are written, and name the late worker."""

from __future__ import annotations

import os
import re
import subprocess

import pytest
from example_runs import ROOT
from launching import PACKAGE
from warm_python import interpreter

pytestmark = pytest.mark.timeout(180)
PAGE = (ROOT / "docs/dashboard.md").read_text()


def test_the_first_commands(tmp_path):
    (script, *_) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (commands, *_) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "late.py").write_text(script)
    # In place of the installed command.
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "tfdist"
    command.write_text(f'#!/bin/sh\nexec {interpreter()} -m tfdist "$@"\n')
    command.chmod(0o700)
    path = os.pathsep.join([PACKAGE, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    environment = {
        **os.environ,
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        "PYTHONPATH": path,
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    done = subprocess.run(
        ["bash", "-ec", commands],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "3 of 3 tasks answer" in done.stdout
    assert re.search(r"late: worker 1; the others wait for it \d+ %", done.stdout)
    # Worker 2 exchanges data with worker 0 alone.
    line = r"worker 0: waited \d+\.\d s for worker 1 \(.*s\), most in all_reduce 'gradients'"
    assert re.search(line, done.stderr), done.stderr[-2000:]
    assert "the job has ended" in done.stderr
