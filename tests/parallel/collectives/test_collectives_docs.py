"""The programs of docs/guides/collectives.md."""

from __future__ import annotations

import re

import pytest

from support.example_runs import ROOT, tfdist_run

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.long(
        covered_by="parallel/collectives/test_collectives.py, parallel/collectives/test_objects.py"
    ),
]
PROGRAMS = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs/guides/collectives.md").read_text(), re.DOTALL
)


def test_the_programs_of_the_page(tmp_path):
    script = tmp_path / "train.py"
    first, objects, layer, groups = PROGRAMS
    # In one job: each program's init, after the first, finds the job entered.
    script.write_text(first + objects + groups + layer)
    lines = tfdist_run(script, tasks="--workers 3")
    text = "\n".join(lines)
    assert "[3. 3.] (6, 2) [0 1 2]" in text
    for said in ("first 0 3.0", "first 1 3.0", "last 1 3.0", "last 2 3.0"):
        assert said in text
    assert "options {'rate': 0.1, 'layers': [8, 4]} of 3 processes" in text
    assert "first 2" not in text and "last 0" not in text
    assert len(re.findall(r"loss \d+\.\d+", text)) == 3
