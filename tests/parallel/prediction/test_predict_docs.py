"""The programs of docs/guides/prediction.md, and the example on MovieLens's files."""

from __future__ import annotations

import json
import re

import pytest

from support.example_runs import ROOT, alone, documented_command, tfdist_run, typed

pytestmark = [
    pytest.mark.timeout(170),
    pytest.mark.long(
        covered_by="parallel/prediction/test_predict_after_fit.py, "
        "single/prediction/test_predict_command.py"
    ),
]
PAGE = (ROOT / "docs/guides/prediction.md").read_text()
PROGRAM = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]


def test_the_first_program(tmp_path):
    for workers in (1, 2):
        script = tmp_path / "predict.py"
        script.write_text(PROGRAM.replace('"out"', repr(str(tmp_path / f"out {workers}"))))
        if workers == 1:
            lines = alone(script).splitlines()
        else:
            lines = tfdist_run(script, tasks="--workers 1:4:2")
        assert sum("10000 rows in 10 parts" in line for line in lines) == workers
    parts = [
        {p.name: p.read_bytes() for p in (tmp_path / f"out {workers}").glob("part-*")}
        for workers in (1, 2)
    ]
    assert parts[0] == parts[1] and len(parts[0]) == 10


def test_the_example(tmp_path):
    command = documented_command("keras_examples/batch_prediction.py")
    command[command.index("/tmp/ratings")] = str(tmp_path / "ratings")
    lines = typed(command)
    text = "\n".join(lines)
    found = re.search(r"(\d+) rows in (\d+) parts, mean absolute error ([\d.]+)", text)
    assert (found[1], found[2]) == ("100000", "50") and float(found[3]) < 0.9
    parts = sorted((tmp_path / "ratings").glob("part-*"))
    rows = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
    assert len(rows) == 100_000 and rows[0].keys() == {"user", "film", "stars"}
