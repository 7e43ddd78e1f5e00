"""A job that asks for nothing: `tfdist top` and `tfdist jobs` find it, and its last state stays."""

from __future__ import annotations

import os
import re

import pytest

from support import warm_python
from support.launching import PACKAGE, Launched
from support.patience import wait_until
from tfdist.cli.main import main
from tfdist.launch.job_registry import jobs
from tfdist.observe.live.last_states import LastStates
from tfdist.observe.live.records import TaskAnswer

pytestmark = pytest.mark.timeout(120)
SCRIPT = """
import time
from pathlib import Path
import keras, numpy as np, tfdist

class Waits(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        Path(f"trained {tfdist.rank()}").touch()
        while epoch == 0 and not Path("continue").exists():
            time.sleep(0.01)

strategy = tfdist.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.0), "mse", metrics=["mae"])
x, y = np.zeros([24, 4], "f4"), np.full([24, 1], 3.0, "f4")
model.fit(x, y, batch_size=8, epochs=2, verbose=0, validation_data=(x, 2 * y), callbacks=[Waits()])
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A running job, whose `fit` waits after its first epoch for the file "continue"."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "train.py").write_text(SCRIPT)
    path = os.pathsep.join([PACKAGE, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    command = [warm_python.interpreter(), "-m", "tfdist", "run", "--workers", "2", "train.py"]
    running = Launched(command, {**os.environ, "PYTHONPATH": path}, cwd=tmp_path)
    yield running
    running.close()


def test_the_whole_life_of_a_job(job, tmp_path, capsys):
    wait_until(lambda: len(list(tmp_path.glob("trained *"))) == 2, "the first epoch")
    assert main(["top", "--once", "--interval", "0.2"]) == 0
    table = capsys.readouterr().out
    assert "2 of 2 tasks answer" in table and "worker 0: epoch 2 of 2, batch 0 of 3, " in table
    assert main(["jobs"]) == 0
    assert re.search(
        r" epoch 2 of 2, batch 0 of 3, \d+ s left .* train.py\n", capsys.readouterr().out
    )
    (tmp_path / "continue").touch()
    code, _, err = job.finish()
    assert code == 0, err
    (ended,) = jobs()
    assert ended.exits == {"worker 0": 0, "worker 1": 0}
    gone = [TaskAnswer(name, "", 0.0, problem="has ended") for name in ended.tasks]
    for answer in LastStates(ended.states).complete(gone):
        state = answer.state
        assert state is not None and state.fit is not None
        assert (state.fit.epoch, state.fit.has_ended) == (2, True)
        # Nothing is learned at this rate: 3 * 3, 6 * 6, and their roots.
        newest = {name: points[-1] for name, points in state.curves.items()}
        assert newest == {
            **{"loss": (6, 9.0), "mae": (6, 3.0)},
            **{"val_loss": (6, 36.0), "val_mae": (6, 6.0)},
        }
        # It has written before it has left the others.
        assert state.value("tfdist_steps") == 6 and state.value("tfdist_world_size") == 2
        (peer,) = state.traffic
        assert state.traffic[peer][0] > 0 and state.cpu > 0 and state.events
