"""The programs of docs/guides/prediction.md, and the example on MovieLens's files."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess

import pytest

from support.example_runs import ROOT, alone, documented_command, tfdist_run, typed
from support.launching import PACKAGE
from support.warm_python import interpreter

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


def test_the_command(tmp_path):
    make, features = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[1:3]
    command = re.search(r"^tfdist predict --model served --input .*?[^\\]$", PAGE, re.M | re.S)[0]
    (tmp_path / "make.py").write_text(f"import os\nos.chdir({str(tmp_path)!r})\n{make}")
    (tmp_path / "features.py").write_text(features)
    alone(tmp_path / "make.py")
    words = shlex.split(command.replace("\\\n", ""))[1:]
    done = subprocess.run(
        [interpreter(), "-m", "tfdist", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": PACKAGE},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=150,
        text=True,
    )
    assert done.returncode == 0 and "10000 rows in 10 parts" in done.stdout, done.stdout
    parts = sorted((tmp_path / "scores").glob("part-*"))
    rows = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
    assert [row["id"] for row in rows] == [*range(10_000)]


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
