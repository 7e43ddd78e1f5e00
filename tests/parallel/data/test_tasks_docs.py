"""The programs of docs/guides/data.md, and the example on MovieLens's files."""

from __future__ import annotations

import re

import pytest

from support.example_runs import ROOT, documented_command, tfdist_run, typed

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.long(
        covered_by="parallel/data/test_tasks_async.py, parallel/data/test_tasks_together.py"
    ),
]
PROGRAMS = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guides/data.md").read_text(), re.DOTALL)


@pytest.mark.parametrize(
    "strategy", ["ParameterServerStrategy", "MultiWorkerMirroredStrategy"], ids=["ps", "all-reduce"]
)
def test_the_first_program(tmp_path, strategy):
    script = tmp_path / "train.py"
    script.write_text(PROGRAMS[0].replace("ParameterServerStrategy", strategy))
    tasks = "--workers 2 --ps 1" if strategy.startswith("Parameter") else "--workers 2"
    lines = tfdist_run(script, tasks=tasks)
    losses = [float(loss) for line in lines for loss in re.findall(r"- loss: ([\d.e-]+)", line)]
    assert len(losses) >= 3 and losses[-1] < losses[0]


def test_the_loop(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        """
import tensorflow as tf
import tfdist
strategy = tfdist.ParameterServerStrategy()
data = tfdist.data.from_ranges(1000, 100, epochs=1).batch(30)
with strategy.scope():
    trained = tf.Variable(0, dtype=tf.int64)
train_step = lambda batch: trained.assign_add(len(batch))
"""
        + next(program for program in PROGRAMS if "tfdist.data.step()" in program)
        + """
print("records", int(trained), "refused", strategy.communication_stats().refused_pushes)
"""
    )
    lines = tfdist_run(script, tasks="--workers 1 --ps 1")
    assert any("records 1000 refused 0" in line for line in lines)


def test_movielens_tasks():
    lines = typed([*documented_command("keras_examples/movielens_tasks.py"), "--epochs", "3"])
    auc = re.search(r"test AUC: ([\d.]+) \((\d+) ratings\)", "\n".join(lines))
    assert float(auc[1]) > 0.68 and 19_000 < int(auc[2]) < 21_000
    steps = [
        list(map(int, re.findall(r"\d+", line.split("each:")[1])))
        for line in lines
        if "each:" in line
    ]
    assert len(steps) == 2 and all(len(of_one) == 3 for of_one in steps)
    # Both together see each line once an epoch; the last batch of each is short.
    for of_epoch in zip(*steps, strict=True):
        assert 100_000 / 256 <= sum(of_epoch) <= 100_000 / 256 + 3
