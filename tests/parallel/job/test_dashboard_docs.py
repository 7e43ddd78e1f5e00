"""The commands of docs/operate/dashboard.md run as they are written, and name the late worker."""

from __future__ import annotations

import re

import pytest

from support.example_runs import ROOT, shell

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.long(covered_by="parallel/job/test_stragglers.py"),
]
PAGE = (ROOT / "docs/operate/dashboard.md").read_text()


def test_the_first_commands(tmp_path):
    (script, *_) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (commands, *_) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "late.py").write_text(script)
    done = shell(commands, tmp_path)
    assert "3 of 3 tasks answer" in done.stdout
    assert re.search(r"late: worker 1; the others wait for it \d+ %", done.stdout)
    line = r"worker 0: worker 1 is late: others waited up to .* s\), most in all_reduce 'gradients'"
    assert re.search(line, done.stderr), done.stderr[-2000:]
    assert "the job has ended" in done.stderr
