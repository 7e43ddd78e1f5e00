"""Workers of an elastic `fit` with embedding tables on two parameter servers suffer faults.

Rows and dense weights end as in one plain process with a dense kernel in place of the table,
and each server applies each step's gradients of rows once.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tfdist
from support import tiers
from support.elastic.elastic_faults import Fault, Faults, check, running, suffer, undisturbed
from support.elastic.elastic_training import BATCH, Fit
from support.processes.ranks import start_ranks
from tfdist.errors import TfdistError
from tfdist.layers import legacy

pytestmark = pytest.mark.timeout(240)
WORKERS = 3
TOLERANCE = 1e-6
LEDGER = Fit(model="ledger of tables", dtype="float32", servers=2)


def check_ledger(course, results, fit=LEDGER):
    """Asserts that rows and weights count that each record was trained once in each epoch."""
    check(fit, course, results, tolerance=0.0, of_logs=1e-4)
    assert len(results) == WORKERS
    for result in results.values():
        for counts in result.weights:
            assert np.all(counts == course.epochs), counts


def test_ledger(tmp_path):
    course, results = suffer(
        LEDGER,
        [
            Faults(Fault("kill", 1, "pushed", epoch=1, batch=2)),
            Faults(Fault("kill", 2, "committing", epoch=1, batch=1), Fault("kill", 0, "agreed")),
            Faults(Fault("kill", 1, delay=0.02), Fault("leave", 0, "batch end", epoch=1, batch=1)),
        ],
        tmp_path,
        WORKERS,
    )
    check_ledger(course, results)


# Collectives that detect a stopped worker, or that clip, are the same as without tables.
@pytest.mark.long(covered_by="test_ledger")
@pytest.mark.parametrize("clips", [False, True])
def test_parity(clips, tmp_path):
    """As far from one process as without faults at most, because float32 rounds."""
    fit = Fit("tables", "arrays", "float32", validates=True, saves=True, servers=2, clips=clips)
    if tiers.LONG:
        without, _ = undisturbed(fit, 8, WORKERS)
        assert without <= TOLERANCE
    course, results = suffer(
        fit,
        [
            Faults(Fault("kill", 0, "batch begin", epoch=1, batch=3), restarts="later"),
            Faults(Fault("kill", 0, "committing", epoch=1, batch=4), Fault("kill", 1, "formed")),
            Faults(Fault("kill", 1, "validation", epoch=0, batch=0)),
        ],
        tmp_path,
        WORKERS,
    )
    check(fit, course, results, tolerance=TOLERANCE, of_logs=1e-5)


@pytest.mark.long(covered_by="single/elastic/test_membership_partition.py")
def test_stopped_workers_join_again(tmp_path):
    fit = Fit("ledger of tables", "arrays", "float32", is_quick=True, servers=2)
    course, results = suffer(
        fit,
        [
            Faults(Fault("stop", 1, "committing", epoch=1, batch=2)),
            Faults(Fault("stop", 0, "pushed", epoch=1, batch=2)),
        ],
        tmp_path,
        WORKERS,
    )
    check_ledger(course, results, fit)


@pytest.mark.long(covered_by="test_ledger, parallel/ps/test_ps_faults.py")
def test_a_server_is_killed_between_two_steps(tmp_path):
    """It continues from its snapshot and its log, in the generation of the workers."""
    fit = Fit("ledger of tables", "arrays", "float32", saves=True, servers=2)
    with running(fit, tmp_path, WORKERS) as course:
        course.begin(Faults(epochs=1))
        for server in (WORKERS, WORKERS + 1):
            course.ranks[server].kill()
            course.ranks.restart(server)
            course.permit(Faults(Fault("kill", 1, "pushed", epoch=0, batch=2)))
        results = course.end()
    check_ledger(course, results, fit)


@pytest.mark.long(covered_by="test_ledger")
@pytest.mark.parametrize("place", ["pushed", "committing", "epoch end", "checkpoint"])
def test_servers_and_a_worker_are_killed_at_once(place, tmp_path):
    """A server may lose the step that was being made, and nothing else."""
    fit = Fit("ledger of tables", "arrays", "float32", saves=True, servers=2)
    batch = 2 if place in ("pushed", "committing") else None
    epoch = None if place == "checkpoint" else 1
    rank = 0 if place == "checkpoint" else 1  # rank 0 saves
    fault = Fault("kill with servers", rank, place, epoch=epoch, batch=batch)
    course, results = suffer(fit, [Faults(epochs=1), Faults(fault)], tmp_path, WORKERS)
    assert len(results) == WORKERS
    for result in results.values():
        weights, rows = result.weights
        assert np.all(weights == course.epochs), weights
        lost = course.epochs - rows.ravel()
        assert set(lost) <= {0.0, 1.0} and sum(lost) <= BATCH, lost


def refuse(ctx):
    """The options of tables that an elastic job refuses, by name."""
    if ctx.rank == 1:
        tfdist.MultiWorkerMirroredStrategy()  # serves
    strategy = tfdist.MultiWorkerMirroredStrategy()
    data = np.arange(8), np.ones([8, 1], "float32")

    def model_of(kind=keras.Model, accumulates=None, **arguments):
        with strategy.scope():
            optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=accumulates)
            ids = keras.Input((), dtype="int64")
            rows = tfdist.layers.Embedding(output_dim=1, **arguments)(ids)
            model = kind(ids, rows)
            model.compile(optimizer, "mse")
        return model

    with pytest.raises(ValueError, match=r"expected cache_rows=0 in an elastic job.*received 9"):
        model_of(cache_rows=9)
    with pytest.raises(ValueError, match=r"expected no gradient_accumulation_steps.*received 2"):
        model_of(accumulates=2).fit(*data, verbose=0)

    with strategy.scope():
        layers = [tf_keras.Input((), dtype="int64"), legacy.Embedding(output_dim=1)]
        of_tf_keras = tf_keras.Sequential(layers)
        of_tf_keras.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"expected a model of Keras 3, because it has embedding"):
        of_tf_keras.fit(*data, verbose=0)

    class Twice(keras.Model):
        def train_step(self, data):
            for _ in range(2):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(self(data[0]))
                weights = self.trainable_variables
                self.optimizer.apply(tape.gradient(loss, weights), weights)
            return {"loss": loss}

    with pytest.raises(TfdistError, match=r"expected each table of an elastic job to be looked up"):
        model_of(Twice).fit(*data, verbose=0)

    model = model_of()

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(data[0]))
        weights = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, weights), weights)

    with pytest.raises(TfdistError, match=r"expected their gradients in fit alone"):
        strategy.run(step)


def test_refusals():
    env = {"TFDIST_ELASTIC": "1:1"}
    with start_ranks(refuse, 2, env=env, roles=["worker", "ps"]) as ranks:
        for outcome in ranks.join(60.0):
            assert outcome.exit_code == 0, outcome.describe()
