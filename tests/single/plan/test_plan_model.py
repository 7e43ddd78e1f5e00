"""`tfdist plan --model`: a script runs alone, and is measured."""

from __future__ import annotations

import os
import re
import subprocess
import textwrap
from pathlib import Path

import pytest

from support.launching import PACKAGE
from support.warm_python import interpreter

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.timeout(120)

# The page's program: 64 different ids in each batch of 32 rows, and 27 dense parameters.
PROGRAM = re.search(r"```python\n(.*?)```", (ROOT / "docs/operate/plan.md").read_text(), re.DOTALL)[
    1
]
FIT = f"""\
import os, sys
assert "TF_CONFIG" not in os.environ and sys.stdin.read() == ""
print("arguments", sys.argv[1:])
{PROGRAM}
print("not reached")
"""
LOOP = """
    import keras, tensorflow as tf

    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])
    optimizer = keras.optimizers.Adam()

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        weights = model.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)

    for _ in range(8):
        step(tf.ones([4, 8]))
    print("ended by itself")
"""


def plan(tmp_path, source: str, *options: str) -> subprocess.CompletedProcess:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(source))
    command = [interpreter(), "-m", "tfdist", "plan", "--model", str(script)]
    command += ["--workers", "4", "--bandwidth", "1Gbit/s", *options]
    path = os.pathsep.join(filter(None, [PACKAGE, os.environ.get("PYTHONPATH")]))
    job = {"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker"}}'}
    return subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | job | {"PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=110,
    )


@pytest.mark.long(covered_by="test_custom_loop_that_ends_by_itself")
def test_fit(tmp_path):
    finished = plan(tmp_path, FIT, "--model-steps", "6", "--", "--width", "3")
    assert finished.returncode == 0, finished.stderr[-3000:]
    out = finished.stdout
    assert "measured: median of 6 steps of the script alone" in out
    assert "dense parameters: 27, 108 bytes of gradients a step" in out
    assert "sparse parameters: 4.00 K in sequential/embedding/embeddings, 64 of 1,000 rows" in out
    assert "buckets of gradients: 1, complete after" in out
    # The script's own output is not between the tables.
    assert "arguments ['--width', '3']" in finished.stderr
    assert "not reached" not in finished.stderr + out


def test_custom_loop_that_ends_by_itself(tmp_path):
    finished = plan(tmp_path, LOOP, "--model-steps", "100", "--memory", "16GB")
    assert finished.returncode == 0, finished.stderr[-3000:]
    # Without three steps of warm-up.
    assert "measured: median of 5 steps of the script alone" in finished.stdout
    assert "dense parameters: 27, " in finished.stdout
    assert "ended by itself" in finished.stderr
    # Adam has two slots of each parameter, and three scalars less than 20 bytes.
    assert re.search(r"without sharding +108 bytes +2\d\d bytes +108 bytes", finished.stdout)
    assert re.search(r"Sharding\(stage=3\) +135 bytes", finished.stdout)
    assert "Memory: in 16.00 GB a worker fits without sharding." in finished.stdout


SAVING = """
    import keras, numpy as np, tensorflow as tf

    class Saves(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.save("model.keras")
            self.model.save_weights("model.weights.h5")
            tf.train.Checkpoint(model=self.model).save("checkpoint/c")
            keras.saving.save_model(self.model, "other.keras")
            tf.saved_model.save(self.model, "served")

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    callbacks = [
        keras.callbacks.BackupAndRestore("backup", save_freq=1),
        keras.callbacks.ModelCheckpoint("best.keras", save_freq=1),
        keras.callbacks.CSVLogger("log.csv"),
        keras.callbacks.TensorBoard("events"),
        Saves(),
    ]
    x = np.ones((64, 2))
    model.fit(x, x[:, :1], batch_size=2, epochs=9, verbose=0, callbacks=callbacks)
"""


def test_nothing_is_left_from_which_a_job_would_go_on(tmp_path):
    (tmp_path / "log.csv").write_text("of a real job")
    finished = plan(tmp_path, SAVING)
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.csv", "train.py"]
    assert (tmp_path / "log.csv").read_text() == "of a real job"


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("raise ValueError('no data')", (), "expected more than 3 training steps of Keras 3"),
        ("import os; os._exit(3)", (), "expected training steps, but it ended with exit code 3"),
        (
            "import threading; threading.Event().wait()",
            ("--model-timeout", "1.5"),
            "expected 10 training steps within 1.5 s, but it still runs",
        ),
    ],
)
def test_a_script_that_cannot_be_measured(tmp_path, source, options, message):
    finished = plan(tmp_path, source, *options)
    assert finished.returncode == 1 and finished.stdout == ""
    assert f"tfdist plan: error: {tmp_path}/train.py: {message}" in finished.stderr
