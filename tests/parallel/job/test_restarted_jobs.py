"""Training continues after `tfdist run --restarts` has restarted tasks."""

from __future__ import annotations

import json
import re
import textwrap

import pytest

from support.launching import Launcher
from support.warm_python import interpreter

pytestmark = pytest.mark.timeout(240)

# `killed_before`: this process replaces a killed one.
BODY = """
with open(here / f"pids {me}", "a") as pids: pids.write(f"{os.getpid()}\\n")
killed_before = len((here / f"pids {me}").read_text().split()) > 1
def die(): os.kill(os.getpid(), signal.SIGKILL)
import keras, numpy as np, tfdist
x = np.random.default_rng(0).normal(size=(256, 8)).astype("float32")
y = x.sum(axis=1)
def model():
    keras.utils.set_random_seed(1)
    made = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
    made.compile(optimizer="sgd", loss="mse")
    return made
class Steps(keras.callbacks.Callback):
    # Calls `at(epoch, step)` after each step.
    def __init__(self, at):
        super().__init__()
        self.at, self.epochs = at, []
    def on_epoch_begin(self, epoch, logs=None): self.epochs.append(epoch)
    def on_train_batch_end(self, batch, logs=None): self.at(self.epochs[-1], batch)
"""
SERVED = """
def die_when_reached():
    wait_for_file("reached")
    die()
def train(at, **options):
    # Returns the servers' step counts at the beginning and at the end, and the epochs made here.
    if me == "ps 0" and victim == me and not killed_before:
        # A server has no callbacks.
        threading.Thread(target=die_when_reached, daemon=True).start()
    strategy = tfdist.ParameterServerStrategy(**options)
    with strategy.scope(): made = model()
    before = int(made.optimizer.iterations.numpy())
    steps = Steps(at)
    made.fit(x, y, batch_size=16, epochs=3, verbose=0, callbacks=[steps])
    return before, int(made.optimizer.iterations.numpy()), steps.epochs
"""


@pytest.fixture
def run(tmp_path):
    launcher = Launcher(tmp_path, interpreter())

    def finish(*parts, options):
        body = BODY + "".join(map(textwrap.dedent, parts))
        return launcher(body, "--restarts", "1", *options).finish(timeout=200)

    yield finish
    launcher.close()


def told(out, name):
    """Returns the JSON output of each task, in the order of its processes."""
    lines = [line.removeprefix(f"[{name}] ") for line in out if line.startswith(f"[{name}] {{")]
    return [json.loads(line) for line in lines]


def lives(folder):
    """How many processes each task had."""
    return {
        path.name.removeprefix("pids "): len(path.read_text().split())
        for path in folder.glob("pids *")
    }


def restarts(err):
    return [line for line in err if re.match("tfdist run: .*restarts left", line)]


@pytest.mark.long(covered_by="parallel/keras/test_resume_after_kills.py")
def test_all_reduce_resumes_from_the_backup(run, tmp_path):
    code, out, err = run(
        """
        with tfdist.MultiWorkerMirroredStrategy().scope(): made = model()
        def at(epoch, step):
            if me == "worker 1" and (epoch, step) == (1, 1) and not killed_before: die()
        steps = Steps(at)
        backup = keras.callbacks.BackupAndRestore(here / "backup")
        made.fit(x, y, batch_size=64, epochs=3, shuffle=False, verbose=0, callbacks=[backup, steps])
        # The same training in one piece.
        alone = model()
        alone.fit(x, y, batch_size=64, epochs=3, shuffle=False, verbose=0)
        difference = np.abs(np.ravel(alone.get_weights()[0] - made.get_weights()[0])).max()
        say(json.dumps({"epochs": steps.epochs, "difference": float(difference)}))
        """,
        options=("--workers", "2"),
    )
    assert code == 0, "\n".join(err)
    assert lives(tmp_path) == {"worker 0": 2, "worker 1": 2}
    assert restarts(err) == [
        "tfdist run: worker 1 failed: killed by SIGKILL; stopping worker 0, then starting all "
        "again (restarts left: 0)"
    ]
    for worker in ("worker 0", "worker 1"):
        (end,) = told(out, worker)
        assert end["epochs"] == [1, 2]
        assert end["difference"] < 1e-5


@pytest.mark.long(covered_by="parallel/ps/test_ps_faults.py")
@pytest.mark.parametrize("saved", [True, False], ids=["checkpoint_dir", "no_checkpoint_dir"])
def test_a_killed_server_is_replaced_and_the_workers_go_on(run, tmp_path, saved):
    code, out, err = run(
        SERVED,
        """
        victim = "ps 0"
        def at(epoch, step):
            if me == "chief 0" and (epoch, step) == (1, 0):
                if saved: wait_for_file("snapshots/manifest.json")
                (here / "reached").touch()
                while len((here / "pids ps 0").read_text().split()) < 2: time.sleep(0.01)
        folder = str(here / "snapshots") if saved else None
        before, after, epochs = train(at, checkpoint_dir=folder, checkpoint_every=0.2)
        say(json.dumps({"before": before, "after": after, "epochs": epochs}))
        """.replace("if saved", f"if {saved}"),
        options=("--workers", "2", "--ps", "1"),
    )
    assert code == 0, "\n".join(err)
    assert lives(tmp_path) == {"chief 0": 1, "worker 0": 1, "ps 0": 2}
    assert restarts(err) == [
        "tfdist run: ps 0 failed: killed by SIGKILL; starting it again (restarts left: 0)"
    ]
    for name in ("chief", "worker 0"):
        (end,) = told(out, name)
        assert end["epochs"] == [0, 1, 2]
        assert end["after"] > 0
    begins_anew = any("keeps no snapshots (checkpoint_dir)" in line for line in err)
    goes_on = any("[ps 0] ps 0: continues from snapshot" in line for line in err)
    assert (begins_anew, goes_on) == (not saved, saved)


# The chief restarts as a worker does.
@pytest.mark.long("chief 0", covered_by="the other cases")
@pytest.mark.parametrize("victim", ["worker 0", "chief 0"])
def test_a_killed_worker_comes_back_to_the_servers_values(run, tmp_path, victim):
    code, out, err = run(
        f"victim = {victim!r}\n",
        SERVED,
        """
        def at(epoch, step):
            if me == victim and (epoch, step) == (1, 2) and not killed_before: die()
        before, after, epochs = train(at)
        say(json.dumps({"before": before, "after": after, "epochs": epochs}))
        """,
        options=("--workers", "2", "--ps", "1"),
    )
    assert code == 0, "\n".join(err)
    once = {"chief 0": 1, "worker 0": 1, "ps 0": 1}
    assert lives(tmp_path) == once | {victim: 2}
    name = "chief" if victim == "chief 0" else victim
    assert restarts(err) == [
        f"tfdist run: {name} failed: killed by SIGKILL; starting it again (restarts left: 0)"
    ]
    (end,) = told(out, name)
    # Eight steps an epoch: it had made about eleven, and makes all its own again.
    assert end["before"] >= 10 and end["epochs"] == [0, 1, 2]
    assert end["after"] >= end["before"] + 24


# A worker that fails comes back as a killed one.
@pytest.mark.long(covered_by="test_a_killed_worker_comes_back_to_the_servers_values")
def test_a_worker_that_exits_with_a_failure_has_not_left(run, tmp_path):
    code, out, err = run(
        "victim = None\n",
        SERVED,
        """
        tried = len((here / "pids chief 0").read_text().split()) > 1
        def at(epoch, step):
            if step == 2 and not tried: sys.exit(3)
        before, after, epochs = train(at)
        say(json.dumps({"before": before, "after": after}))
        """,
        options=("--workers", "1", "--ps", "1"),
    )
    assert code == 0, "\n".join(err)
    assert lives(tmp_path) == {"chief 0": 2, "ps 0": 1}
    assert restarts(err) == [
        "tfdist run: chief failed: exit code 3; starting it again (restarts left: 0)"
    ]
    (end,) = told(out, "chief")
    assert end["before"] >= 2 and end["after"] == end["before"] + 48
