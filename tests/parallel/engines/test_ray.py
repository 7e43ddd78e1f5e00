"""Jobs on a Ray cluster of two nodes on this machine."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.example_runs import ROOT
from support.held_prediction import HeldPrediction
from support.launching import PACKAGE

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="Ray is missing: pip install ray"
    ),
    # They need the engine itself.
    pytest.mark.long(
        covered_by="single/config/test_environments.py, single/launch/test_ray_request.py, "
        "parallel/prediction/test_predict_deaths.py"
    ),
]
# Each case is a driver of its own: Ray changes the process that it is used in. `train` waits in
# each step, so that a replacement finds the job still running.
DRIVER = """
import json, os, signal, subprocess, sys, threading, time
from pathlib import Path
import ray
from ray.cluster_utils import Cluster
import tfdist

def train(config):
    import keras, numpy as np, tfdist
    folder = Path(config["folder"])

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(config.get("pause", 0))
            done = int(self.model.optimizer.iterations.numpy())
            if done >= 13 and tfdist.rank() == 0:
                (folder / "has begun").touch()
            mark = folder / "killed"
            if done == 13 and tfdist.rank() == 1 and config.get("kill") and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    keras.utils.set_random_seed(1)
    strategy = (tfdist.ParameterServerStrategy if config.get("ps")
                else tfdist.MultiWorkerMirroredStrategy)()
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=(640, 8)).astype("float32")
    backup = [keras.callbacks.BackupAndRestore(f"{folder}/backup", save_freq=5)]
    model.fit(x, x.sum(axis=1), batch_size=64, epochs=config.get("epochs", 3), verbose=0,
              callbacks=[Watch(), *(backup if not config.get("ps") else [])])
    total = float(sum(weight.sum() for weight in model.get_weights()))
    return {"sum": total, "node": ray.get_runtime_context().get_node_id(),
            "size": tfdist.size(), "steps": int(model.optimizer.iterations.numpy())}

def drain(cluster, folder):
    while not (Path(folder) / "has begun").exists():
        time.sleep(0.1)
    node = cluster.worker_nodes.copy().pop().node_id
    subprocess.run(["ray", "drain-node", "--address", cluster.address, "--node-id", node,
                    "--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "test",
                    "--deadline-remaining-seconds", "300"], check=True)

def train_in_ray_train(config):
    rank = ray.train.get_context().get_world_rank()
    Path(config["folder"], f"rank {rank}").write_text(json.dumps(train(config)))

config, keywords, wants_drain = json.loads(sys.argv[1])
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "include_dashboard": False})
cluster.add_node(num_cpus=4)
ray.init(address=cluster.address)
if wants_drain:
    threading.Thread(target=drain, args=(cluster, config["folder"]), daemon=True).start()
try:
    if config.get("ray train"):
        import ray.train.tensorflow
        trainer = ray.train.tensorflow.TensorflowTrainer(
            train_in_ray_train,
            train_loop_config=config,
            scaling_config=ray.train.ScalingConfig(num_workers=2, placement_strategy="SPREAD"),
            run_config=ray.train.RunConfig(storage_path=config["folder"]))
        trainer.fit()
        sys.exit()
    result = tfdist.ray.run(train, config=config, **keywords)
    print("RESULT", json.dumps([result.values, result.restarts, result.preemptions]))
except tfdist.ray.RayJobError as error:
    print("ERROR", error)
finally:
    ray.shutdown()
    cluster.shutdown()
"""


# Runs a command beside a cluster of two nodes, which it finds by RAY_ADDRESS.
BESIDE_A_CLUSTER = """
import os, subprocess, sys
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "include_dashboard": False})
cluster.add_node(num_cpus=4)
try:
    environment = {**os.environ, "RAY_ADDRESS": cluster.address}
    sys.exit(subprocess.run(sys.argv[1:], env=environment).returncode)
finally:
    cluster.shutdown()
"""


# Two tasks, each of which is one worker, on a node of its own.
PREDICTION = """
import sys
import ray
from ray.cluster_utils import Cluster

@ray.remote(num_cpus=4, max_retries=3)
def predict(folder):
    sys.path.insert(0, folder)
    import prep, tfdist
    data = tfdist.data.from_files(f"{folder}/in-*.csv", "lines", 30, lease=5, name="predict")
    result = tfdist.predict(f"{folder}/served", data, f"{folder}/out", map=prep.held, batch_size=8,
                            keep=["id"], format="jsonl")
    return result.rows, ray.get_runtime_context().get_node_id()

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "include_dashboard": False})
cluster.add_node(num_cpus=4)
ray.init(address=cluster.address)
try:
    rows, nodes = zip(*ray.get([predict.remote(sys.argv[1]) for _ in range(2)]))
    print("ROWS", rows, "NODES", len(set(nodes)))
finally:
    ray.shutdown()
    cluster.shutdown()
"""


def drive(folder: Path, config: dict, wants_drain: bool = False, **keywords) -> str:
    """Runs a job in a driver of its own; returns what the driver printed."""
    text = json.dumps([{"folder": str(folder), **config}, keywords, wants_drain])
    return run(folder, DRIVER, text)


def run(folder: Path, program: str, *arguments: str) -> str:
    """Runs a program in a process of its own; returns what it printed."""
    with started(folder, program, *arguments) as driver:
        return finish(driver)


@contextlib.contextmanager
def started(folder: Path, program: str, *arguments: str) -> Iterator[subprocess.Popen]:
    """Starts a program in a process of its own, which it ends at last."""
    (folder / "driver.py").write_text(program)
    driver = subprocess.Popen(
        [sys.executable, str(folder / "driver.py"), *arguments],
        env={
            **os.environ,
            "PYTHONPATH": PACKAGE,
            "PATH": f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin",
            "RAY_raylet_start_wait_time_s": "120",
            "RAY_worker_niceness": "0",  # else workers starve beside other programs
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "TFDIST_SECRET": "a secret of 24 characters",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with driver:
        try:
            yield driver
        finally:
            driver.send_signal(signal.SIGINT)  # it ends its cluster
            try:
                driver.wait(60)
            except subprocess.TimeoutExpired:
                driver.kill()


def finish(driver: subprocess.Popen) -> str:
    """Waits for the end of a program; returns what it printed."""
    out, err = driver.communicate(timeout=560)
    assert driver.returncode == 0, out[-3000:] + err[-3000:]
    return out


def result_of(text: str) -> tuple[list[dict], int, int]:
    """The values, restarts and preemptions that a driver has printed."""
    return json.loads(re.search(r"^RESULT (.*)$", text, re.MULTILINE)[1])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> float:
    """The sum of the weights that 30 steps end with, on two workers of two nodes."""
    folder = tmp_path_factory.mktemp("undisturbed")
    values, restarts, _ = result_of(drive(folder, {}, num_workers=2, placement="STRICT_SPREAD"))
    assert [value["size"] for value in values] == [2, 2] and restarts == 0
    assert len({value["node"] for value in values}) == 2
    assert values[0]["sum"] == values[1]["sum"]
    return values[0]["sum"]


@pytest.mark.parametrize("workers", [2, 4])
def test_fashion_mnist(tmp_path, workers) -> None:
    example = (sys.executable, str(ROOT / "keras_examples" / "clusters" / "ray_job.py"))
    options = ("--workers", str(workers), "--epochs", "2", "--output", str(tmp_path))
    text = run(tmp_path, BESIDE_A_CLUSTER, *example, *options)
    assert f"{workers} workers have ended, the weights' sum is" in text
    assert "restarts: 0, preemptions: 0" in text


def test_four_workers(tmp_path, undisturbed) -> None:
    values, *_ = result_of(drive(tmp_path, {}, num_workers=4))
    assert [value["sum"] for value in values] == pytest.approx([undisturbed] * 4, rel=1e-5)


def test_a_killed_worker_restarts_the_job(tmp_path, undisturbed) -> None:
    text = drive(tmp_path, {"kill": True}, num_workers=2, placement="SPREAD", max_failures=1)
    values, restarts, _ = result_of(text)
    assert restarts == 1 and values[0]["sum"] == pytest.approx(undisturbed, rel=1e-5)


def test_no_restart_left(tmp_path) -> None:
    text = drive(tmp_path, {"kill": True}, num_workers=2)
    assert re.search(r"ERROR worker 1 \(pid \d+ on node \w+.*no restarts left", text), text


def test_a_parameter_server(tmp_path) -> None:
    values, *_ = result_of(drive(tmp_path, {"ps": True}, num_workers=2, num_ps=1))
    assert len(values) == 2


def test_elastic(tmp_path) -> None:
    config = {"kill": True, "pause": 0.5, "epochs": 20}
    values, restarts, _ = result_of(drive(tmp_path, config, num_workers=2, elastic=(1, 3)))
    assert restarts == 1 and {value["steps"] for value in values} == {200}
    assert {value["size"] for value in values} == {3}
    assert len({value["sum"] for value in values}) == 1


def test_a_drained_node_is_a_preemption(tmp_path, undisturbed) -> None:
    text = drive(tmp_path, {"pause": 0.5}, True, num_workers=2, placement="SPREAD")
    values, restarts, preemptions = result_of(text)
    assert (restarts, preemptions) == (0, 1)
    assert values[0]["sum"] == pytest.approx(undisturbed, rel=1e-5)


@pytest.mark.skipif(
    importlib.util.find_spec("pyarrow") is None, reason="Ray Train is missing: ray[train]"
)
def test_inside_of_ray_train(tmp_path, undisturbed) -> None:
    drive(tmp_path, {"ray train": True})
    values = [json.loads((tmp_path / f"rank {rank}").read_text()) for rank in range(2)]
    assert [value["sum"] for value in values] == pytest.approx([undisturbed] * 2, rel=1e-5)
    assert [value["size"] for value in values] == [2, 2]


def test_a_prediction_survives_a_killed_worker(tmp_path) -> None:
    prediction = HeldPrediction(tmp_path)
    with started(tmp_path, PREDICTION, str(tmp_path)) as driver:

        def runs() -> bool:
            return driver.poll() is None

        prediction.wait_until_held(2, runs)
        prediction.kill_one()
        prediction.wait_until_held(2, runs)  # its task was started again
        prediction.let_go()
        assert "ROWS (360, 360) NODES 2" in finish(driver)
    prediction.check()
