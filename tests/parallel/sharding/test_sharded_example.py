"""The example of sharding, by its documented command."""

from __future__ import annotations

import re

import pytest

from support.example_runs import ROOT, alone, tfdist_run

EXAMPLE = ROOT / "keras_examples/sharded_language_model.py"


@pytest.mark.long(covered_by="parallel/sharding/test_gathered_layers.py")
@pytest.mark.timeout(240)
def test_sharded_language_model_equals_one_process():
    options = ("--epochs", "1", "--limit", "20000")
    lines = tfdist_run(EXAMPLE, *options)
    found = sorted(
        re.findall(r"\[worker (\d)\] optimizer: ([\d.]+) of ([\d.]+) MB", "\n".join(lines))
    )
    assert [rank for rank, _, _ in found] == ["0", "1"]
    for _, here, whole in found:
        assert float(here) == pytest.approx(float(whole) / 2, abs=0.1)
    (ours,) = (line for line in lines if "bits of a byte" in line)
    (expected,) = (
        line for line in alone(EXAMPLE, *options).splitlines() if "bits of a byte" in line
    )
    assert ours.partition("] ")[2] == expected
