"""Installs a wheel of tfdist beside the TensorFlow of this Python, and trains with it.

    python scripts/check_wheel.py WHEEL

Nothing on the PATH but this environment: no compiler can be found. One line for each step, with its
seconds; a step that fails ends the program with its output.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAMS = Path(sys.executable).parent
WORKERS = """
import keras, numpy as np, tfdist

strategy = tfdist.MultiWorkerMirroredStrategy()
keras.utils.set_random_seed(1)
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x = np.random.default_rng(0).normal(size=(256, 8))
losses = model.fit(x, x.sum(axis=1), batch_size=32, epochs=2, verbose=0).history["loss"]
assert losses[1] < losses[0], losses
"""
TABLE = """
import keras, numpy as np, tfdist

strategy = tfdist.ParameterServerStrategy()
with strategy.scope():
    user = keras.Input((), dtype="string")
    row = tfdist.layers.Embedding(output_dim=16, optimizer="adagrad", name="users")(user)
    model = keras.Model(user, keras.layers.Dense(1)(row))
    model.compile("adam", "mse")
names, target = np.array(["ann", "bob"] * 64, dtype=object), np.array([1.0, 2.0] * 64)
losses = model.fit(names, target, batch_size=16, epochs=2, shuffle=False, verbose=0).history["loss"]
assert losses[1] < losses[0], losses
"""


def run(what: str, *command: str, folder: str) -> float:
    """Runs a program of this environment; returns its seconds."""
    environment = {**os.environ, "PATH": str(PROGRAMS), "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment.pop("PYTHONPATH", None)
    began = time.monotonic()
    ended = subprocess.run(
        [str(PROGRAMS / command[0]), *command[1:]],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    if ended.returncode:
        sys.exit(f"{what}: exit code {ended.returncode}\n{ended.stdout}")
    seconds = time.monotonic() - began
    print(f"{seconds:7.1f} s  {what}", flush=True)
    return seconds


def main() -> None:
    """Makes all steps."""
    (wheel,) = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("workers.py", WORKERS), ("table.py", TABLE)):
            Path(folder, name).write_text(text)
        total = sum(
            (
                run("pip install", "pip", "install", "-q", wheel, folder=folder),
                run("tfdist --version", "tfdist", "--version", folder=folder),
                run("two workers", "tfdist", "run", "--workers", "2", "workers.py", folder=folder),
                run(
                    "two workers and a ps",
                    *("tfdist", "run", "--workers", "2", "--ps", "1", "table.py"),
                    folder=folder,
                ),
            )
        )
        print(f"{total:7.1f} s  together", flush=True)


if __name__ == "__main__":
    main()
