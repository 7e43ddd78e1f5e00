"""A job's network traffic as an eavesdropper records it: without TLS all is there, with it none."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from support.capture import ENTER, IS_PERMITTED, Capture
from support.launching import PACKAGE
from support.warm_python import interpreter

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(not IS_PERMITTED, reason="a network namespace needs root"),
]

WEIGHTS, GRADIENTS = [1234.5678, -876.54321], [0.1357911, -2.4681012]
ID = 0x1F2E3D4C5B6A7988
# The gradient of the kernel is the input.
TRAINS = f"""
import keras, numpy as np, tensorflow as tf, tfdist
strategy = tfdist.ParameterServerStrategy()
with strategy.scope():
    ids, inputs = keras.Input((1,), dtype="int64"), keras.Input((2,))
    rows = tfdist.layers.Embedding(output_dim=2, name="hidden_rows")(ids)
    kernel = keras.initializers.Constant(np.float32({WEIGHTS})[:, None])
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer=kernel, name="hidden_layer")
    model = keras.Model([ids, inputs], layer(inputs) + keras.ops.sum(rows, axis=(1, 2))[:, None])
    model.compile("sgd", lambda _, output: output)
inputs = np.array([[{ID}]]), np.float32([{GRADIENTS}])
data = tf.data.Dataset.from_tensors((inputs, np.ones((1, 1)))).repeat()
model.fit(data, steps_per_epoch=3, verbose=0)
"""
SECRETS = {
    "weights": np.float32(WEIGHTS).tobytes(),
    "gradients": np.float32(GRADIENTS).tobytes(),
    "ids": np.int64(ID).tobytes(),
    "a layer's name": b"hidden_layer",
    "a table's name": b"hidden_rows",
    "a control method": b"/tfdist.",
    "a frame of a data connection": b"TFD",
}
SERVERS = ("--workers", "2", "--ps", "1")
COMMAND = f"{ENTER}\nimport runpy; runpy.run_module('tfdist', run_name='__main__')"
TABLES = """
import keras, numpy as np, tfdist
strategy = tfdist.MultiWorkerMirroredStrategy()
with strategy.scope():
    ids = keras.Input((2,), dtype="int64")
    rows = keras.layers.Flatten()(tfdist.layers.Embedding(output_dim=4, name="rows")(ids))
    model = keras.Model(ids, keras.layers.Dense(1)(rows))
    model.compile("sgd", "mse")
model.fit(np.arange(64).reshape(32, 2), np.ones(32), batch_size=8, verbose=0)
"""
ELASTIC = """
import keras, numpy as np, tfdist
strategy = tfdist.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(np.ones((8, 2)), np.ones((8, 1)), batch_size=2, verbose=0)
"""
# Worker 0 asks the tasks for their states.
OBSERVED = f"""
import subprocess, sys, tfdist
tfdist.init()
tfdist.ops.barrier()
if tfdist.rank() == 0:
    command = [sys.executable, "-c", {COMMAND!r}, "top", "--once"]
    assert "2 of 2" in subprocess.check_output(command, text=True)
tfdist.ops.barrier()
"""
JOBS = {
    "tables on workers": (TABLES, "--workers", "2"),
    "elastic": (ELASTIC, "--workers", "2:3:2"),
    "observed": (OBSERVED, "--workers", "2", "--timeline", "timeline.json"),
}


def recorded(folder: Path, script: str, *options: str) -> list[bytes]:
    """Runs a job whose tasks share no memory; returns the bytes of its connections' directions."""
    (folder / "script.py").write_text(ENTER + script)
    with Capture() as capture:
        done = subprocess.run(
            [interpreter(), "-c", COMMAND, "run", *options, "script.py"],
            cwd=folder,
            env={**os.environ, **capture.variables, "PYTHONPATH": PACKAGE}
            | {"TFDIST_PEER_MEMORY": "0", "TF_CPP_MIN_LOG_LEVEL": "3"},
            capture_output=True,
            text=True,
            timeout=100,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    return [stream for stream in capture.streams().values() if stream]


def test_a_job_in_the_clear_shows_everything(tmp_path):
    streams = recorded(tmp_path, TRAINS, *SERVERS)
    hidden = [what for what, secret in SECRETS.items() if not any(secret in s for s in streams)]
    assert not hidden


def test_a_job_within_tls_shows_nothing(tmp_path):
    streams = recorded(tmp_path, TRAINS, *SERVERS, "--tls")
    # Both directions of each worker's connections with the server, of control calls and of data.
    assert len(streams) >= 8 and sum(map(len, streams)) > 20_000
    shown = [what for what, secret in SECRETS.items() if any(secret in s for s in streams)]
    assert not shown
    # Each direction of each connection begins with a handshake.
    assert {stream[:2] for stream in streams} == {b"\x16\x03"}


@pytest.mark.long(covered_by="test_a_job_within_tls_shows_nothing")
@pytest.mark.parametrize("job", JOBS)
def test_each_connection_of_a_job_is_encrypted(job, tmp_path):
    streams = recorded(tmp_path, *JOBS[job], "--tls")
    assert len(streams) >= 4
    assert {stream[:2] for stream in streams} == {b"\x16\x03"}
