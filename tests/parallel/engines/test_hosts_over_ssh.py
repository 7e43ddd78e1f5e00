"""`tfdist run --hosts` with real ssh servers: network namespaces are the hosts."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from parallel.engines import ssh_hosts
from support.held_prediction import HeldPrediction
from support.launching import PRELUDE

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        ssh_hosts.IS_MISSING, reason="needs root and an ssh server: apt-get install openssh-server"
    ),
    # They need a Debian package and root.
    pytest.mark.long(
        covered_by="single/launch/test_hosts.py, parallel/prediction/test_predict_deaths.py"
    ),
]
EXAMPLES = Path(__file__).parents[3] / "keras_examples"
SHORT = ("--epochs", 1, "--limit", 6400)
SLEEP = PRELUDE + "leave_pid()\nwait_for_ever()\n"


@pytest.fixture
def hosts(tmp_path):
    found = ssh_hosts.SshHosts(3, tmp_path)
    try:
        yield found
        for index in range(3):
            found.wait_until_empty(index)
    finally:
        found.close()


def listed(hosts, *slots):
    return ",".join(f"{hosts.addresses[i]}:{count}" for i, count in enumerate(slots) if count)


def accuracies(out):
    return [float(text) for line in out for text in re.findall(r"test accuracy: ([0-9.]+)", line)]


def wait_for(condition, job, timeout=200):
    deadline = time.monotonic() + timeout
    while not condition():
        if job.process.poll() is not None or time.monotonic() > deadline:
            job.process.terminate()
            raise AssertionError(job.finish())
        time.sleep(0.02)


@pytest.mark.parametrize("slots", [(1, 1), (2, 1, 1)], ids=["2-workers", "4-workers"])
def test_fashion_mnist(hosts, slots):
    job = hosts.run("--hosts", listed(hosts, *slots), EXAMPLES / "fashion_mnist.py", *SHORT)
    code, out, err = job.finish(280)
    assert code == 0, err
    assert any(f"{sum(slots)} workers, " in line for line in out)
    (accuracy,) = accuracies(out)
    assert accuracy > 0.6
    assert hosts.network.sent(1) > 50e6


def test_parameter_server(hosts):
    script = EXAMPLES / "parameter_server.py"
    # The server is on the first host.
    job = hosts.run("--hosts", listed(hosts, 1, 1), "--ps", 1, script, *SHORT)
    code, out, err = job.finish(280)
    assert code == 0, err
    assert accuracies(out)[0] > 0.6


def test_a_killed_worker_is_restarted_then_reported(hosts, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SLEEP)
    job = hosts.run("--restarts", 1, "--hosts", listed(hosts, 0, 1, 1), script)
    killed = tmp_path / "pid worker 1"
    for _ in range(2):
        wait_for(killed.exists, job)
        pid = int(killed.read_text())
        assert pid in hosts.processes(2)
        killed.unlink()
        os.kill(pid, signal.SIGKILL)
    code, _, err = job.finish()
    assert code == 128 + signal.SIGKILL
    failed = f"tfdist run: worker 1 on {hosts.addresses[2]} failed"
    assert err[0].startswith(f"{failed}: killed by SIGKILL; stopping worker 0, then starting all")
    assert err[1] == f"{failed}: killed by SIGKILL; no restarts left; stopping worker 0"


def test_a_killed_launcher_leaves_nothing(hosts, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SLEEP)
    job = hosts.run("--hosts", listed(hosts, 1, 1, 1), script)
    wait_for(lambda: len(list(tmp_path.glob("pid *"))) == 3, job)
    job.process.kill()  # `ip netns exec` has become the launcher
    for index in range(3):
        hosts.wait_until_empty(index)


def test_a_preempted_job_saves_and_goes_on(hosts, tmp_path):
    page = (Path(__file__).parents[3] / "docs/operate/preemption.md").read_text()
    (program, _) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    script = tmp_path / "script.py"
    script.write_text(f"import os\nos.chdir({str(tmp_path)!r})\n{program}")
    metadata = tmp_path / "backup" / "training_metadata.json"
    epochs = []
    for _ in range(2):
        before = metadata.stat().st_mtime_ns if metadata.exists() else 0

        def is_saved(before=before):
            return metadata.exists() and metadata.stat().st_mtime_ns > before

        job = hosts.run("--hosts", listed(hosts, 0, 1, 1), script)
        wait_for(is_saved, job)
        job.process.send_signal(signal.SIGTERM)
        code, _, err = job.finish(100)
        assert code == 143, err
        stopped = [found for line in err if (found := re.search(r"stopped in epoch (\d+)", line))]
        assert len(stopped) == 2, err
        epochs.append(int(stopped[0][1]))
    assert epochs[1] >= epochs[0]


def test_a_host_that_is_cut_off_is_named(hosts, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SLEEP)
    ssh = hosts.ssh.replace("LogLevel=ERROR", "LogLevel=INFO")  # it tells why it ends
    ssh += " -o ServerAliveInterval=3 -o ServerAliveCountMax=3"
    job = hosts.run("--ssh", ssh, "--hosts", listed(hosts, 0, 1, 1), script)
    wait_for(lambda: len(list(tmp_path.glob("pid *"))) == 2, job)
    hosts.network.set_link(2, "down")
    code, _, err = job.finish()
    assert code == 255
    lost = f"its host {hosts.addresses[2]} was lost: the connection ended"
    assert any(lost in line and "not responding" in line for line in err), err
    # Its tasks end when the agent has heard nothing for two minutes, or by its ssh server.
    for pid in hosts.processes(2):
        os.kill(pid, signal.SIGKILL)


def test_elastic_hosts_come_and_go(hosts, tmp_path):
    named = tmp_path / "hosts"
    named.write_text(f"{hosts.addresses[1]}:1\n")
    script = tmp_path / "discover"
    script.write_text(f"#!/bin/sh\ncat {named}\n")
    script.chmod(0o755)
    program = tmp_path / "train.py"
    program.write_text(
        f"""
import time
from pathlib import Path
import keras, numpy as np, tfdist
here = Path({str(tmp_path)!r})

class Pace(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        (here / f"members-{{tfdist.size()}}").touch()
        time.sleep(0.05)

strategy = tfdist.MultiWorkerMirroredStrategy()
keras.utils.set_random_seed(1)
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x = np.ones((64, 4), "float32")
model.fit(x, x[:, 0], batch_size=16, epochs=100, verbose=0, callbacks=[Pace()])
"""
    )
    job = hosts.run("--workers", "1:2", "--host-discovery-script", script, program)
    wait_for((tmp_path / "members-1").exists, job)
    named.write_text(f"{hosts.addresses[1]}:1\n{hosts.addresses[2]}:1\n")
    wait_for((tmp_path / "members-2").exists, job)
    (tmp_path / "members-1").unlink()
    named.write_text(f"{hosts.addresses[2]}:1\n")
    wait_for((tmp_path / "members-1").exists, job)
    code, _, err = job.finish(200)
    assert code == 0, err
    assert any(f"host {hosts.addresses[2]} has come, with 1 slots" in line for line in err), err
    assert any(f"host {hosts.addresses[1]} is gone" in line for line in err), err
    assert any("worker 0 has left" in line for line in err), err


def test_a_prediction_survives_a_killed_worker(hosts, tmp_path):
    prediction = HeldPrediction(tmp_path)
    job = hosts.start(*prediction.words(), "--hosts", listed(hosts, 0, 1, 1))

    def runs():
        return job.process.poll() is None

    prediction.wait_until_held(2, runs)
    killed = prediction.kill_one()
    prediction.wait_until_held(2, runs)  # it was started again
    prediction.let_go()
    code, out, err = job.finish(200)
    assert code == 0, err
    assert sum("killed by SIGKILL; starting it again" in line for line in err) == 1, err
    assert sum("tfdist predict: 360 rows in 12 parts" in line for line in out) == 2, out
    assert killed not in hosts.processes(1) + hosts.processes(2)
    prediction.check()
