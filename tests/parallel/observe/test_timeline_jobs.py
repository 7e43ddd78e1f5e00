"""Timelines of real jobs: `tfdist run --timeline`, `tfdist timeline`, and clocks that differ."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from support.launching import PACKAGE, Launched
from support.trace_format import Timeline, end_of
from support.warm_python import interpreter
from tfdist.observe.timeline import parts

pytestmark = pytest.mark.timeout(180)

FIT = """
import sys, time
from pathlib import Path
import keras, numpy as np, tensorflow as tf, tfdist
here = Path(sys.argv[0]).parent
buckets = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=16384)
strategy = tfdist.MultiWorkerMirroredStrategy(communication_options=buckets)
keras.utils.set_random_seed(1)
with strategy.scope():
    layers = [keras.layers.Dense(units) for units in (64, 64, 64, 64, 1)]
    model = keras.Sequential(layers)
    model.compile("sgd", "mse")
x = np.random.rand(60, 32).astype("float32")
backup = keras.callbacks.BackupAndRestore(here / f"backup-{tfdist.rank()}", delete_checkpoint=False)
model.fit(x, x.sum(1), batch_size=12, epochs=2, verbose=0, callbacks=[backup])
"""
# Then collectives, until the test has seen enough.
REDUCE = """
def agree(label):
    go_on = not (here / "enough").exists() if tfdist.rank() == 0 else False
    return bool(tfdist.ops.all_reduce(tf.constant(int(go_on)), label=label) > 0)
(here / f"trained-{tfdist.rank()}").touch()
while agree("after fit"): time.sleep(0.01)
"""
KILLED = """
import os, signal, sys, time
import tensorflow as tf, tfdist
tfdist.init()
for step in range(4):
    tfdist.ops.all_reduce(tf.ones(4), label=f"step {step}")
if tfdist.rank() == 1:
    time.sleep(1)  # until worker 0 waits
    os.kill(os.getpid(), signal.SIGKILL)
tfdist.ops.all_reduce(tf.ones(4), label="never ends")
"""
SERVED = """
import keras, numpy as np, tensorflow as tf, tfdist
from tfdist.layers import Embedding
strategy = tfdist.ParameterServerStrategy()
with strategy.scope():
    ids = keras.Input((2,), dtype="int64")
    rows = keras.layers.Flatten()(Embedding(output_dim=4, name="rows")(ids))
    model = keras.Model(ids, keras.layers.Dense(1)(rows))
    model.compile("sgd", "mse")
ids = np.arange(64).reshape(32, 2)
model.fit(ids, np.ones(32), batch_size=8, epochs=2, verbose=0)
"""
# Each worker starts again in a time namespace whose clock differs by minutes from the others'.
AWAY = """
import json, os, sys
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
if "AWAY" not in os.environ:
    os.environ["AWAY"] = "1"
    command = ["unshare", "--time", "--monotonic", str(100 * rank), "--fork", "--kill-child"]
    os.execvp("unshare", [*command, sys.executable, *sys.argv])
"""


class Jobs:
    """Starts jobs in a directory, and `tfdist timeline`; `close` ends all."""

    def __init__(self, folder):
        self._folder = folder
        self._environment = {**os.environ, "PYTHONPATH": PACKAGE, "TMPDIR": str(folder)}
        for name in ("TFDIST_DEBUG_DIR", "TFDIST_TIMELINE"):
            self._environment.pop(name, None)
        self._running = []

    def start(self, script, *options, python=None):
        file = self._folder / "script.py"
        file.write_text(script)
        job = ["--job-file", str(self._folder / "job.json"), *options, str(file)]
        command = [python or interpreter(), "-m", "tfdist", "run", *job]
        self._running.append(Launched(command, self._environment))
        return self._running[-1]

    def typed(self, command, *arguments):
        """Runs `tfdist timeline ...`; returns the exit code and the output."""
        done = subprocess.run(
            [sys.executable, "-m", "tfdist", "timeline", command, *arguments],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stdout

    def of_job(self, command, *arguments):
        return self.typed(command, *arguments, "--job", str(self._folder / "job.json"))

    def wait_for(self, pattern, count):
        deadline = time.monotonic() + 120
        while len(list(self._folder.glob(pattern))) < count:
            assert time.monotonic() < deadline, f"no {pattern}"
            time.sleep(0.05)

    def close(self):
        for launched in self._running:
            launched.close()


@pytest.fixture
def jobs(tmp_path):
    made = Jobs(tmp_path)
    yield made
    made.close()


def test_a_job_of_three_workers(jobs, tmp_path):
    whole, later = tmp_path / "whole.json", tmp_path / "later.json"
    launched = jobs.start(FIT + REDUCE, "--workers", "3", "--timeline", str(whole))
    jobs.wait_for("trained-*", 3)
    code, said = jobs.of_job("stop")
    assert code == 0 and said.count(f": stopped {whole}\n") == 3, said
    assert f"{whole}: 3 tasks, " in said
    code, said = jobs.of_job("stop")
    assert code == 1 and "worker-1: failed: worker 1 is not recorded\n" in said
    code, said = jobs.of_job("start", str(later))
    assert code == 0 and said.count(f": recording {later}\n") == 3, said
    code, said = jobs.of_job("start", str(tmp_path / "other.json"))
    assert code == 1 and f"failed: worker 0 is recorded already, for {later}" in said
    assert not (tmp_path / "other.json.parts").exists()
    (tmp_path / "enough").touch()
    code, _, errors = launched.finish(timeout=60)
    assert code == 0, errors
    check_fit(Timeline(whole))
    # The last task to end has merged what was started later.
    of_later = Timeline(later)
    for rank in range(3):
        process = f"worker {rank}"
        assert of_later.slices(process, "collective", "after fit")
        assert not of_later.slices(process, "step")
    assert of_later.about["notes"] == [] and not parts.directory_of(later).exists()


def check_fit(timeline):
    processes = [f"worker {rank}" for rank in range(3)]
    assert list(timeline.processes) == processes and timeline.about["notes"] == []
    for process in processes:
        assert timeline.clocks[process]["method"] == "same clock"
        assert len(timeline.slices(process, "rendezvous")) == 1
        assert len(timeline.slices(process, "checkpoint")) >= (process == "worker 0")
        steps = timeline.slices(process, "step")
        assert len(steps) == 10
        collectives = timeline.slices(process, "collective")
        for step in steps[1:]:
            inside = [c for c in collectives if step["ts"] <= c["ts"] <= end_of(step)]
            buckets = [c for c in inside if c["args"]["bytes"] > 1000]
            # 33 x 64 + 3 x 65 x 64 + 65 floats, in buckets of 16 KB.
            assert sum(c["args"]["bytes"] for c in buckets) <= 4 * (33 * 64 + 3 * 65 * 64 + 65)
            assert len(buckets) >= 3
            for bucket in buckets:
                spent = [
                    part["dur"]
                    for category in ("waiting", "travelling")
                    for part in timeline.inside(bucket, category)
                ]
                assert sum(spent) == pytest.approx(bucket["dur"], abs=0.01)
            names = [phase["name"] for phase in timeline.inside(step, "phase")]
            assert names == ["forward and backward", "wait for gradients", "update"]
    check_order(timeline, processes, 0.0)
    assert any(overlapped(timeline, step) for step in timeline.slices("worker 0", "step")[1:])


def overlapped(timeline, step):
    """The time in us for which buckets travel beside a step's forward and backward pass."""
    (computes,) = (p for p in timeline.inside(step, "phase") if p["name"] == "forward and backward")
    return sum(
        max(0.0, min(end_of(c), end_of(computes)) - max(c["ts"], computes["ts"]))
        for c in timeline.slices("worker 0", "collective")
        if c["args"]["bytes"] > 1000
    )


def check_order(timeline, processes, error):
    """No all-reduce ends on a rank before another one has begun it; `error` of clocks in us."""
    sides = {}
    for process in processes:
        for one in timeline.slices(process, "collective"):
            if one["args"]["operation"] == "all_reduce" and "unfinished" not in one["args"]:
                sides.setdefault(one["args"]["id"], []).append(one)
    whole = [ones for ones in sides.values() if len(ones) == len(processes)]
    assert len(whole) > 10
    for ones in whole:
        last = max(one["ts"] for one in ones)
        assert last <= min(map(end_of, ones)) + 2 * error + 1, ones


def test_what_a_killed_worker_has_done_is_there(jobs, tmp_path):
    out = tmp_path / "out.json"
    code, _, errors = jobs.start(KILLED, "--workers", "2", "--timeline", str(out)).finish(60)
    assert code != 0
    timeline = Timeline(out)
    (note,) = [line for line in errors if line.startswith("tfdist run: the job's timeline: ")]
    assert "worker 1 has not ended its recording" in note
    labels = [one["name"] for one in timeline.slices("worker 1", "collective")]
    assert labels == [f"step {step}" for step in range(4)]
    (hangs,) = timeline.slices("worker 0", "collective", "never ends")
    # The launcher may end worker 0 before it has noticed.
    assert hangs["args"].get("unfinished") or "lost rank 1" in hangs["args"]["error"]


# Parameter servers record with the same code.
@pytest.mark.long(covered_by="test_a_job_of_three_workers")
def test_parameter_servers(jobs, tmp_path):
    out = tmp_path / "out.json"
    options = ("--workers", "1", "--ps", "1", "--timeline", str(out))
    code, _, errors = jobs.start(SERVED, *options).finish(120)
    assert code == 0, errors
    timeline = Timeline(out)
    assert sorted(timeline.processes) == ["chief", "ps 0"]
    for operation in ("pull", "push", "lookup"):
        assert len(timeline.slices("chief", "request", operation)) >= 8
    names = {
        phase["name"]
        for step in timeline.slices("chief", "step")
        for phase in timeline.inside(step, "phase")
    }
    assert names >= {"wait for variables", "forward and backward"}


# It imports TensorFlow in three time namespaces.
@pytest.mark.long(covered_by="single/observe/test_clock_namespaces.py")
def test_clocks_of_time_namespaces(jobs, tmp_path):
    out = tmp_path / "out.json"
    launched = jobs.start(
        AWAY + FIT, "--workers", "3", "--timeline", str(out), python=sys.executable
    )
    code, _, errors = launched.finish(150)
    assert code == 0, errors
    timeline = Timeline(out)
    for rank in range(3):
        found = timeline.clocks[f"worker {rank}"]
        if rank == 0:
            assert found["method"] == "same clock"
            continue
        assert found["method"] == "measured" and found["measurements"] >= 1
        for offset in found["offset_us"]:
            assert abs(offset + 100e6 * rank) <= found["error_us"]
    error = max(clock["error_us"] for clock in timeline.clocks.values())
    check_order(timeline, list(timeline.clocks), error)
