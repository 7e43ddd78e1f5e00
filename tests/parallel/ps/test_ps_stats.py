"""Statistics of servers: on request, and in TensorBoard."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import tfdist
import tfdist.cli.main
from support.ps_job import meet, on_job, served
from support.table_job import Tables
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.control.client import ControlClient
from tfdist.errors import AuthenticationError, ClusterConfigError
from tfdist.job import process
from tfdist.ps.config import PsConfig
from tfdist.ps.stats import messages, rates
from tfdist.ps.worker import PsWorker


@on_job(1, 2)
def test_servers_tell_what_they_hold(ctx):
    if served():
        return
    cluster = Cluster.from_environment()
    member = PsWorker(cluster, PsConfig.make(1), Settings.from_environment())
    tables = Tables(member.client)
    table = tables.table("users", 4)
    before = member.readings()
    for _ in range(2):
        tables.lookup(table, np.arange(1000))
    tables.push(table, np.arange(100), np.ones([100, 4]))
    after = [rates.rates(*pair) for pair in zip(before, member.readings(), strict=True)]
    assert sum(one.rows for one in after) == 1000
    for one in after:
        users = one.tables["users"]
        assert 400 < users.rows < 600 and one.rows == users.rows
        assert users.hit_rate == one.hit_rate == 0.5
        assert users.lookups > 0 and users.updates > 0 and one.pushes > 0
        assert one.workers == 1
    # From the command line, without being a task of the job.
    arguments = ["ps", "stats", "--cluster", ",".join(cluster.ps), "--interval", "0.1"]
    assert tfdist.cli.main.main(arguments) == 0
    with ControlOf(cluster, b"another secret") as control:
        with pytest.raises(AuthenticationError):
            rates.ask(control)
    with ControlOf(cluster, None) as control:
        later = dataclasses.replace(messages.STATISTICS, version=99).method(messages.StatsRequest)
        with pytest.raises(ClusterConfigError, match="version 99 of the service Statistics"):
            control.call(later, messages.StatsRequest(wait=1.0), 1.0, patient=False)
    member.leave()


class ControlOf:
    """Returns a client of the first server's control address, with a secret."""

    def __init__(self, cluster, secret):
        self._control = ControlClient(cluster, secret, cluster.ps[0], "ps 0")

    def __enter__(self):
        return self._control

    def __exit__(self, *error):
        self._control.close()


@on_job(2, 1)
def test_the_chief_writes_what_they_tell(ctx):
    if served():
        return
    import keras

    strategy = tfdist.ParameterServerStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    log_dir = ctx.tmp_path / f"logs {ctx.rank}"
    callback = tfdist.callbacks.PsStats(str(log_dir), update_freq=5)
    data = tf.data.Dataset.from_tensors((np.ones([8, 4], "f4"), np.ones([8, 1], "f4"))).repeat()
    model.fit(data, steps_per_epoch=20, epochs=1, verbose=0, callbacks=[callback])
    meet(ctx, "trained")
    found = scalars(log_dir / "ps") if ctx.rank == 0 else {}
    if ctx.rank == 1:
        assert not log_dir.exists()
        return
    assert [step for step, _ in found["ps/0/bytes"]] == [5, 10, 15, 20]
    assert found["ps/0/rows"][-1][1] == 0
    assert all(value > 0 for _, value in found["ps/0/pushes_per_second"])
    assert "ps/0/hit_rate" not in found


@on_job(2, 1)
def test_the_chief_writes_beside_all_reduce(ctx):
    if served():
        return
    import keras

    strategy = tfdist.MultiWorkerMirroredStrategy()
    with strategy.scope():
        ids = keras.Input((), dtype="int64")
        row = tfdist.layers.Embedding(None, 2, name="users")(ids)
        model = keras.Model(ids, keras.layers.Dense(1)(row))
        model.compile("sgd", "mse")
    log_dir = ctx.tmp_path / f"logs {ctx.rank}"
    callback = tfdist.callbacks.PsStats(str(log_dir))
    data = tf.data.Dataset.from_tensors((np.arange(8), np.ones([8, 1], "f4")))
    model.fit(data, epochs=2, verbose=0, callbacks=[callback])
    if ctx.rank == 0:
        assert [value for _, value in scalars(log_dir / "ps")["ps/0/rows"]] == [8, 8]


def scalars(folder):
    """Steps and values of all scalars in a folder of TensorBoard's."""
    found = {}
    for path in folder.iterdir():
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                number = float(tf.make_ndarray(value.tensor))
                found.setdefault(value.tag, []).append((event.step, number))
    return found


def test_without_servers_nothing_is_written(tmp_path):
    import keras

    assert process.current.readings() == []
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    callback = tfdist.callbacks.PsStats(str(tmp_path / "logs"))
    model.fit(np.ones([8, 4]), np.ones([8, 1]), verbose=0, callbacks=[callback])
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize("update_freq", [0, -1, "batch", 1.5, True, None])
def test_when_to_write(update_freq):
    with pytest.raises(ValueError, match='expected update_freq to be "epoch" or a number'):
        tfdist.callbacks.PsStats("logs", update_freq=update_freq)
