"""The programs of docs/guides/estimator.md, started as it says."""

from __future__ import annotations

import re

import pytest

from support.example_runs import ROOT, tfdist_run

pytestmark = pytest.mark.timeout(180)
PROGRAMS = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs/guides/estimator.md").read_text(), re.DOTALL
)


@pytest.mark.long(
    covered_by=(
        "parallel/estimator/test_estimator_jobs.py, single/estimator/test_estimator_model_fns.py"
    )
)
def test_estimator_and_then_keras(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(PROGRAMS[0])
    tfdist_run(script, tasks="--workers 2 --evaluator")
    assert (tmp_path / "model/model.ckpt-300.index").is_file()
    assert list((tmp_path / "model/eval").glob("events.*"))
    # Keras begins with the Estimator's weights.
    script.write_text(PROGRAMS[-1])
    lines = tfdist_run(script)
    losses = [float(loss) for line in lines for loss in re.findall(r"- loss: ([\d.e-]+)", line)]
    assert len(losses) == 3 and losses[0] < 0.1


def test_embeddings_in_a_model_fn(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    model_fn = next(p for p in PROGRAMS if "EmbeddingTable" in p)
    script.write_text(
        "import tensorflow as tf\nimport tfdist\nfrom tfdist import estimator\n"
        + model_fn
        + """
def input_fn():
    data = {"user": [b"ann", b"bob"] * 32}, [1.0, 2.0] * 32
    return tf.data.Dataset.from_tensor_slices(data).repeat().batch(16)

config = estimator.RunConfig("model", train_distribute=tfdist.ParameterServerStrategy())
job = estimator.Estimator(model_fn, config=config)
job.train(input_fn, max_steps=200)
if config.is_chief:
    print(job.evaluate(input_fn, steps=1))
"""
    )
    lines = tfdist_run(script, tasks="--workers 2 --ps 1")
    (result,) = [line for line in lines if "'loss'" in line]
    assert float(re.search(r"'loss': np.float32\(([\d.e-]+)\)", result)[1]) < 0.1
