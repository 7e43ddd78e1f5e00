"""`tfdist.data.distribute` in jobs of `tfdist run --data-workers N`: each worker's records."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import textwrap

import pytest

from support.example_runs import ROOT, documented_command, tfdist_run, typed
from support.launching import PACKAGE
from support.warm_python import interpreter
from tfdist.config.cluster import Cluster
from tfdist.launch.ports import free_ports

pytestmark = pytest.mark.timeout(180)

PRELUDE = """
import json, os, signal, sys, threading
from pathlib import Path
here = Path(__file__).parent
task = json.loads(os.environ["TF_CONFIG"])["task"]
me = f"{task['type']} {task['index']}"
(here / f"pid {me}").write_text(str(os.getpid()))
import keras, numpy as np, tensorflow as tf, tfdist

def rows_of(strategy, dataset, at=lambda epoch, step: None, epochs=1):
    # The rows that each epoch brings to this worker, batch by batch.
    distributed = strategy.experimental_distribute_dataset(dataset)
    found = []
    for epoch in range(epochs):
        found.append([])
        for step, batch in enumerate(distributed):
            (own,) = strategy.experimental_local_results(batch)
            found[-1].append([int(row) for row in own.numpy()])
            at(epoch, step)
    return found

def counters(strategy, rows, keras=keras):
    # With this loss and SGD of rate 1, the weight of a one-hot row is the number of its visits.
    class Visits(keras.losses.Loss):
        def __init__(self): super().__init__(reduction="sum")
        def call(self, labels, outputs): return -outputs
    with strategy.scope():
        weights = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = keras.Sequential([keras.Input((rows,)), weights])
        model.compile(keras.optimizers.SGD(1.0), loss=Visits())
    return model

def visits(model): return sorted(set(model.get_weights()[0].ravel().tolist()))

def ledger(rows, batch):
    return tf.data.Dataset.range(rows).map(lambda row: (tf.one_hot(row, rows), 0.0)).batch(batch)
"""


@pytest.fixture
def run(tmp_path):
    """Runs a script in a job; returns the JSON that each task printed, by the task's name."""

    def run(body, *arguments, tasks):
        script = tmp_path / "script.py"
        script.write_text(PRELUDE + textwrap.dedent(body))
        lines = tfdist_run(script, *arguments, tasks=tasks)
        found = (re.fullmatch(r"\[(.*?)\] (\{.*\})", line) for line in lines)
        return {match[1]: json.loads(match[2]) for match in found if match}

    return run


@pytest.mark.long(covered_by="test_a_killed_data_worker_takes_only_what_it_held_with_it")
def test_under_a_synchronous_strategy_each_row_comes_once_in_an_epoch(run):
    told = run(
        """
        strategy = tfdist.MultiWorkerMirroredStrategy()
        # 25 batches of 8, and one of 3. Without a seed its graph differs from worker to worker.
        shuffled = tf.data.Dataset.range(203).shuffle(50).batch(8)
        once = tfdist.data.distribute(shuffled)
        each = tfdist.data.distribute(tf.data.Dataset.range(20).batch(8), "parallel_epochs")
        report = {"once": rows_of(strategy, once, epochs=3), "each": rows_of(strategy, each)}
        # Keras: epochs in which this worker's number of batches differs, and evaluations between.
        model, rows = counters(strategy, 100), tfdist.data.distribute(ledger(100, batch=4))
        model.fit(rows, epochs=4, verbose=0)
        report["loss"] = model.evaluate(rows, verbose=0)
        model.fit(rows, epochs=1, verbose=0)
        report["visits"] = visits(model)
        print(json.dumps(report))
        """,
        tasks="--workers 2 --data-workers 2",
    )
    first, second = told["worker 0"], told["worker 1"]
    for mine, others in zip(first["once"], second["once"], strict=True):
        assert sorted(sum(mine + others, [])) == list(range(203))
        # Both make as many steps, and a batch of the job has 8 rows at most.
        assert len(mine) == len(others)
        assert all(len(a) <= 4 and len(b) <= 4 for a, b in zip(mine, others, strict=True))
    ((mine,), (others,)) = first["each"], second["each"]
    assert sorted(sum(mine + others, [])) == sorted(2 * list(range(20)))
    assert first["visits"] == second["visits"] == [5.0]


@pytest.mark.long(covered_by="test_a_killed_data_worker_takes_only_what_it_held_with_it")
def test_tf_keras(run):
    told = run(
        """
        import tf_keras
        strategy = tfdist.MultiWorkerMirroredStrategy()
        model, rows = counters(strategy, 100, tf_keras), tfdist.data.distribute(ledger(100, 4))
        model.fit(rows, epochs=5, verbose=0)
        print(json.dumps({"visits": visits(model)}))
        """,
        tasks="--workers 2 --data-workers 2",
    )
    assert told["worker 0"]["visits"] == told["worker 1"]["visits"] == [5.0]


@pytest.mark.long(covered_by="test_a_killed_data_worker_takes_only_what_it_held_with_it")
def test_workers_of_parameter_servers_take_what_is_left(run):
    told = run(
        """
        strategy = tfdist.ParameterServerStrategy()
        rows = tfdist.data.distribute(ledger(64, batch=4))
        model = counters(strategy, 64)
        model.fit(rows, epochs=3, verbose=0)
        (here / f"done {me}").touch()
        if strategy.is_chief:
            while len(list(here.glob("done *"))) < 2: threading.Event().wait(0.05)
            print(json.dumps({"visits": visits(model)}))
        """,
        tasks="--workers 2 --ps 1 --data-workers 1",
    )
    assert told["chief"]["visits"] == [3.0]


def test_servers_whose_workers_wait_for_each_other_are_refused(run):
    told = run(
        """
        strategy = tfdist.ParameterServerStrategy(mode="sync")
        try:
            tfdist.data.distribute(tf.data.Dataset.range(3).batch(1))
        except tfdist.errors.ClusterConfigError as error:
            print(json.dumps({"error": str(error)}))
        """,
        tasks="--workers 1 --ps 1 --data-workers 1",
    )
    assert (
        "expected ParameterServerStrategy(mode='async'), received mode='sync'"
        in (told["chief"]["error"])
    )


MOST_LOST = 100
# Kills a task in the second of three epochs. Each row is its own batch.
KILL = """
victim, mode = sys.argv[1:]
strategy = tfdist.MultiWorkerMirroredStrategy()
def at(epoch, step):
    if (epoch, step) == (1, 20) and strategy.is_chief:
        os.kill(int((here / f"pid {victim}").read_text()), signal.SIGKILL)
rows = tfdist.data.distribute(tf.data.Dataset.range(600).batch(2), mode)
print(json.dumps({"epochs": rows_of(strategy, rows, at, epochs=3)}))
"""


KILL_TASKS = "--workers 2 --data-workers 2 --restarts 1"


def epochs(told):
    """The rows of each epoch, of both workers."""
    both = zip(told["worker 0"]["epochs"], told["worker 1"]["epochs"], strict=True)
    return [sorted(sum(mine + others, [])) for mine, others in both]


def test_a_killed_data_worker_takes_only_what_it_held_with_it(run):
    before, during, after = epochs(
        run(KILL, "data_worker 1", "distributed_epoch", tasks=KILL_TASKS)
    )
    assert before == after == list(range(600))
    # No row twice. It held at most the batches that it had made in advance.
    assert len(set(during)) == len(during)
    assert 600 - len(during) <= MOST_LOST


# The mode of the cover loses most.
@pytest.mark.long(covered_by="test_a_killed_data_worker_takes_only_what_it_held_with_it")
@pytest.mark.parametrize("victim", ["data_worker 1", "data_dispatcher 0"])
def test_where_each_data_worker_produces_all_a_killed_one_begins_again(run, victim):
    before, during, after = epochs(run(KILL, victim, "parallel_epochs", tasks=KILL_TASKS))
    assert before == after == sorted(2 * list(range(600)))
    counts = {during.count(row) for row in range(600)}
    assert counts <= ({1, 2, 3} if victim == "data_worker 1" else {2})


@pytest.mark.long(covered_by="test_a_killed_data_worker_takes_only_what_it_held_with_it")
def test_a_killed_dispatcher_goes_on_from_its_journal(run):
    before, during, after = epochs(
        run(KILL, "data_dispatcher 0", "distributed_epoch", tasks=KILL_TASKS)
    )
    assert before == after == list(range(600))
    # It may have dealt out a row to each data worker without its answer arriving.
    assert len(set(during)) == len(during) >= 600 - 2


@pytest.mark.long(covered_by="test_a_killed_data_worker_takes_only_what_it_held_with_it")
def test_the_first_program_of_the_page(tmp_path):
    program = re.search(
        r"```python\n(.*?)```", (ROOT / "docs/guides/data_service.md").read_text(), re.DOTALL
    )[1]
    script = tmp_path / "train.py"
    script.write_text(program)
    lines = tfdist_run(script, tasks="--workers 2 --data-workers 2")
    assert any("loss" in line for line in lines)


@pytest.mark.long(covered_by="test_a_killed_data_worker_takes_only_what_it_held_with_it")
def test_the_example():
    command = documented_command("keras_examples/data_service.py")
    lines = typed([*command, "--limit", "1200", "--epochs", "1"])
    (line,) = [line for line in lines if "images/s" in line]
    assert line.startswith("[worker 0]") and "2 data workers" in line


@pytest.mark.long(covered_by="test_a_killed_data_worker_takes_only_what_it_held_with_it")
def test_without_the_launcher_data_tasks_end_after_the_job(tmp_path):
    ports = [f"127.0.0.1:{port}" for port in free_ports(3)]
    cluster = Cluster(workers=ports[:1], data_dispatcher=ports[1:2], data_workers=ports[2:])
    script = tmp_path / "script.py"
    script.write_text(
        PRELUDE
        + "strategy = tfdist.MultiWorkerMirroredStrategy()\n"
        + "rows = tfdist.data.distribute(tf.data.Dataset.range(20).batch(3))\n"
        + "print(json.dumps(rows_of(strategy, rows)))\n"
    )

    def start(role, *arguments):
        environment = {
            **os.environ,
            "TF_CONFIG": dataclasses.replace(cluster, task_type=role).tf_config(),
            "PYTHONPATH": PACKAGE,
            # After this time without rank 0 the job has ended.
            "TFDIST_RENDEZVOUS_TIMEOUT": "8",
        }
        return subprocess.Popen(
            [interpreter(), *arguments], env=environment, stdout=subprocess.PIPE, text=True
        )

    server = ("-m", "tfdist.server")
    started = [start("data_dispatcher", *server), start("data_worker", *server)]
    try:
        started.append(start("worker", str(script)))
        said, _ = started[-1].communicate(timeout=60)
        (rows,) = json.loads(said.splitlines()[-1])
        assert sum(rows, []) == list(range(20))
        assert [task.wait(30) for task in started] == [0, 0, 0]
    finally:
        for task in started:
            task.kill()
            task.communicate()
