"""20,000 steps of two ranks, and 200 communicators, leave nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.launching import PACKAGE

MEMORY = Path(__file__).parents[2] / "benchmarks/memory.py"


@pytest.mark.timeout(3600)
def test_nothing_grows(tmp_path):
    figures = tmp_path / "memory.json"
    subprocess.run(
        [sys.executable, str(MEMORY), "--steps", "20000", "--json", str(figures)],
        env={**os.environ, "PYTHONPATH": PACKAGE},
        check=True,
        timeout=3500,
    )
    grown = json.loads(figures.read_text())["growth"]
    # Of two processes in a quarter. Of steps, seen were 0.1 MB in half of them; of each of 40
    # communicators TensorFlow keeps a kernel in its cache of eager kernels, 36 KB.
    assert grown["steps"]["resident"] <= 256
    assert grown["communicators"]["resident"] <= 2 * 40 * 40
    for held in grown.values():
        assert held["descriptors"] <= 0 and held["threads"] <= 0 and held["mappings"] <= 2
