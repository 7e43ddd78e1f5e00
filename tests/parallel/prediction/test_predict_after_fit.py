"""`tfdist.predict` in a training script, after `fit`: all-reduce, and tables on servers."""

from __future__ import annotations

import pytest

from support.example_runs import tfdist_run

pytestmark = pytest.mark.timeout(170)
SCRIPT = """
import keras, numpy as np, tensorflow as tf, tfdist

strategy = tfdist.{strategy}
keras.utils.set_random_seed(1)
generator = np.random.default_rng(0)
x = generator.normal(size=(400, 4)).astype("float32")
item = generator.integers(0, 50, size=400)

with strategy.scope():
    inputs = {{"x": keras.Input((4,), name="x")}}
    inputs["item"] = keras.Input((), dtype="int64", name="item")

    rows = {layer}(inputs["item"])
    joined = keras.layers.concatenate([keras.layers.BatchNormalization()(inputs["x"]), rows])
    model = keras.Model(inputs, keras.layers.Dense(1)(joined))
    model.compile("sgd", "mse")

batches = tf.data.Dataset.from_tensor_slices(({{"x": x, "item": item}}, x.sum(1))).batch(40)

for number in (1, 2):  # a second training and prediction of the same script
    model.fit(batches, verbose=0)

    data = tfdist.data.from_arrays(
        {{"id": np.arange(400), "x": x, "item": item}}, task_size=50, name="predict"
    )

    out = {out!r} + str(number)
    result = tfdist.predict(model, data, out, keep=["id"], batch_size=20, format="npz", verbose=0)

    parts = [np.load(f"{{out}}/{{part}}") for part in result.parts]
    found = np.concatenate([part["prediction"] for part in parts])
    ids = np.concatenate([part["id"] for part in parts])

    expected = np.asarray(model({{"x": x, "item": item}}, training=False))

    print("rows", result.rows, "in order", (ids == np.arange(400)).all(),
          "equal", np.abs(found - expected).max() < 1e-5)
"""
CASES = {
    "all-reduce": ("MultiWorkerMirroredStrategy()", "keras.layers.Embedding(50, 4)", "--workers 2"),
    "ps": (
        "ParameterServerStrategy(mode='sync')",
        "tfdist.layers.Embedding(output_dim=4, name='items')",
        "--workers 2 --ps 1",
    ),
}


@pytest.mark.long("ps", covered_by="the other cases")
@pytest.mark.parametrize("case", CASES)
def test_after_fit(tmp_path, case):
    strategy, layer, tasks = CASES[case]
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(strategy=strategy, layer=layer, out=str(tmp_path / "out")))
    lines = tfdist_run(script, tasks=tasks)
    done = [line for line in lines if "rows 400 in order True equal True" in line]
    assert len(done) == 4, lines
    parts = [
        [p.read_bytes() for p in sorted((tmp_path / f"out{n}").glob("part-*"))] for n in (1, 2)
    ]
    assert len(parts[0]) == 8 and parts[0] != parts[1]
