"""The metrics of a running job's tasks for Prometheus."""

from __future__ import annotations

import threading
import time
import urllib.request

import keras
import numpy as np
import pytest
import tensorflow as tf
from prometheus_client.parser import text_string_to_metric_families

import tfdist
from support.estimator import estimators
from support.patience import wait_until
from support.processes.ranks import on_ranks
from support.ps_job import meet, on_job
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.job import process
from tfdist.ps.server import serve

PORT = {"TFDIST_METRICS_PORT": "0"}


def scrape(port=None):
    """Returns the samples of a task.

    Their keys are name and values of labels, in the order of the labels' names, but the task's.
    """
    port = process.current._observers._exporter.port if port is None else port
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            task = labels.pop("task", None)
            assert (task is not None) == sample.name.startswith("tfdist_"), sample
            found[(sample.name, *labels.values())] = sample.value
    return found


def model(strategy):
    with strategy.scope():
        built = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        built.compile(keras.optimizers.SGD(0.01), "mse")
    return built


def data(rows, batch):
    x = np.ones([rows, 4], "f4")
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(batch)


class Slow(keras.callbacks.Callback):
    """Makes this rank late for each step, but the first."""

    def on_train_batch_begin(self, batch, logs=None):
        if batch:
            time.sleep(0.2)


@on_ranks(2, env={**PORT, "TFDIST_RESTARTS": "3"})
def test_all_reduce(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    before = scrape()
    assert before["tfdist_steps_total",] == before["tfdist_samples_total",] == 0
    slow = [Slow()] if ctx.rank == 1 else []
    began = time.monotonic()
    built = model(strategy)
    # Each rank has 8 and then 3 rows of a batch.
    built.fit(data(22, 16), verbose=0)
    # Since then no rank waits because the other one traces.
    traced = scrape()
    built.fit(data(22, 16), epochs=5, verbose=0, callbacks=slow)
    found, seconds = scrape(), time.monotonic() - began
    assert (traced["tfdist_steps_total",], found["tfdist_steps_total",]) == (2, 12)
    assert found["tfdist_samples_total",] == 66
    assert found["tfdist_restarts_total",] == 3
    assert found["tfdist_world_size",] == 2
    assert found["tfdist_generation",] == 1
    stats = strategy.communication_stats()
    assert found["tfdist_bytes_sent_total", "workers"] == stats.bytes_sent > 0
    assert found["tfdist_bytes_received_total", "workers"] == stats.bytes_received > 0
    assert found["tfdist_collectives_total",] == stats.collectives > 0
    other = f"worker {1 - ctx.rank}"
    assert ("tfdist_wait_seconds_total", f"worker {ctx.rank}") not in found
    waited = found["tfdist_wait_seconds_total", other]
    assert waited <= found["tfdist_communication_seconds_total", "workers"] <= seconds
    # The late rank is named by the other one.
    waits = tfdist.all_gather_object(waited - traced.get(("tfdist_wait_seconds_total", other), 0.0))
    assert waits[0] > 0.8 and waits[0] > 2 * waits[1]
    assert found["process_resident_memory_bytes",] > 1e7
    assert ("tfdist_info", "worker", tf.__version__, tfdist.__version__) in found


@on_job(2, 1, env=PORT)
def test_parameter_servers(ctx):
    cluster = Cluster.from_environment()
    if cluster.task_type == "ps":
        return scraped_server(ctx, cluster)
    strategy = tfdist.ParameterServerStrategy(checkpoint_dir=str(ctx.tmp_path / "snapshots"))
    with strategy.scope():
        ids = keras.Input((), dtype="int64")
        row = tfdist.layers.Embedding(None, 2, name="users")(ids)
        built = keras.Model(ids, keras.layers.Dense(1)(row))
        built.compile("sgd", "mse")
    examples = tf.data.Dataset.from_tensor_slices((np.arange(24), np.ones([24, 1], "f4"))).batch(8)
    built.fit(examples, epochs=2, verbose=0)
    found = scrape()
    # Each worker has all data in this mode.
    stats = strategy.communication_stats()
    assert found["tfdist_steps_total",] == found["tfdist_ps_client_pushes_total",] > 0
    assert found["tfdist_samples_total",] == 8 * found["tfdist_steps_total",]
    assert found["tfdist_bytes_sent_total", "servers"] == stats.bytes_pushed > 0
    assert found["tfdist_communication_seconds_total", "servers"] > 0
    assert found["tfdist_ps_client_lookup_ids_total",] > 0
    meet(ctx, "trained")
    if ctx.rank == 0:
        process.current.ps_worker.checkpoint()
        (ctx.tmp_path / "saved").touch()
    wait_until((ctx.tmp_path / "scraped").exists, "the server's own look")
    return None


def scraped_server(ctx, cluster):
    """Serves, and scrapes this server once the workers have trained."""
    problems = []

    def scrape_once():
        try:
            wait_until((ctx.tmp_path / "saved").exists, "the checkpoint")
            check_server(scrape(exporters[0].port))
        except BaseException as error:
            problems.append(error)
        (ctx.tmp_path / "scraped").touch()

    from tfdist.observe.metrics import exporter

    exporters = []
    of_task = exporter.serve

    def noted(*args):
        exporters.append(of_task(*args))
        return exporters[-1]

    exporter.serve = noted
    thread = threading.Thread(target=scrape_once, daemon=True)
    thread.start()
    with pytest.raises(SystemExit) as ended:
        serve(cluster, Settings.from_environment(), str(ctx.tmp_path / "snapshots"))
    assert ended.value.code == 0
    thread.join()
    if problems:
        raise problems[0]


def check_server(found):
    assert found["tfdist_ps_rows", "users"] == 24
    assert found["tfdist_ps_table_bytes", "users"] > 24 * 8
    assert found["tfdist_ps_lookups_total", "users"] > found["tfdist_ps_lookup_hits_total", "users"]
    assert found["tfdist_ps_evictions_total", "room", "users"] == 0
    assert found["tfdist_ps_pulls_total",] > 0 and found["tfdist_ps_pushes_total",] > 0
    assert found["tfdist_bytes_received_total", "workers"] > 0
    assert found["tfdist_ps_value_bytes",] > 0
    assert found["tfdist_ps_memory_held_bytes",] > 0
    assert found["tfdist_ps_memory_budget_bytes",] == found["tfdist_ps_log_failed",] == 0
    assert found["tfdist_ps_workers",] == 2
    assert found["tfdist_ps_snapshot",] == 1
    assert 0 <= time.time() - found["tfdist_ps_snapshot_timestamp_seconds",] < 60
    assert ("tfdist_steps_total",) not in found


def states_of(found):
    return {key[2]: value for key, value in found.items() if key[0] == "tfdist_tasks"}


@on_ranks(2, env=PORT)
def test_data_tasks(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    x = np.ones([24, 4], "f4")
    tasks = tfdist.data.from_arrays((x, x[:, :1]), task_size=8, name="examples").batch(4)
    model(strategy).fit(tasks, epochs=1, verbose=0)
    if ctx.rank == 1:
        assert not states_of(scrape())
        return
    deadline = time.monotonic() + 60
    # Workers report what they have trained now and then.
    while states_of(found := scrape())["pending"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert states_of(found) == {"to do": 0, "pending": 0, "done": 3, "parked": 0}
    assert found["tfdist_records_total", "examples"] == 24


@on_ranks(2, env=PORT)
def test_the_horovod_interface(ctx):
    """`fit` counts steps and rows by itself; a loop tells its rows."""
    tfdist.init()
    built = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    built.compile(tfdist.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    built.fit(data(11, 4), epochs=2, verbose=0, validation_data=data(8, 4))
    found = scrape()
    assert (found["tfdist_steps_total",], found["tfdist_samples_total",]) == (6, 22)

    @tf.function
    def step(x):
        tfdist.count_samples(x)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(built(x) ** 2)
        return tfdist.DistributedGradientTape(tape).gradient(loss, built.trainable_variables)

    for _ in range(3):
        step(tf.ones([5, 4]))
    found = scrape()
    assert (found["tfdist_steps_total",], found["tfdist_samples_total",]) == (9, 37)


@on_ranks(2, env=PORT, timeout=120)
def test_an_estimator(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    model = estimators.make(ctx.tmp_path / "model", strategy, ctx.rank, optimizer="sgd")
    model.train(estimators.input_fn(), max_steps=4)
    found = scrape()
    assert found["tfdist_steps_total",] == 4
    assert found["tfdist_samples_total",] == 4 * estimators.BATCH // ctx.size
