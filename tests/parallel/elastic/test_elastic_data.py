"""Elastic `fit` refuses data that its workers would read in different orders, or cut otherwise."""

from __future__ import annotations

import importlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support import ledger
from support.processes.rank_outcome import describe_all
from support.processes.ranks import on_ranks, start_ranks
from tfdist.errors import ClusterConfigError, TfdistError

RECORDS = 12


def _fit(dataset):
    with tfdist.MultiWorkerMirroredStrategy().scope():
        model = ledger.model(RECORDS)
    model.fit(ledger.batches(dataset, 4), epochs=2, verbose=0)
    return model


@on_ranks(1, env={"TFDIST_ELASTIC": "1:1"})
def test_a_shuffle_without_a_seed_is_refused(ctx):
    """Rows would be trained twice, and others not at all."""
    with pytest.raises(ValueError, match="read in the same order.*shuffle has no seed"):
        _fit(tf.data.Dataset.range(RECORDS).shuffle(RECORDS))


@on_ranks(2, env={"TFDIST_ELASTIC": "1:2"})
def test_the_seed_of_the_program_is_enough(ctx):
    keras.utils.set_random_seed(3)
    model = _fit(tf.data.Dataset.range(RECORDS).shuffle(RECORDS))
    assert ledger.counts(model) == [2] * RECORDS


@on_ranks(2, env={"TFDIST_ELASTIC": "1:2"})
def test_another_seed_is_refused(ctx):
    """The worker that has it ends; the other one trains alone."""
    keras.utils.set_random_seed(3 + ctx.rank)
    dataset = tf.data.Dataset.range(RECORDS).shuffle(RECORDS)
    if ctx.rank == 0:
        assert ledger.counts(_fit(dataset)) == [2] * RECORDS
        return
    with pytest.raises(TfdistError, match="was 3 and is 4 in this process"):
        _fit(dataset)


def _fit_rows(library, data, rows, columns=3, **options):
    """Trains on six batches, the last of which has some rows more or less."""
    own = importlib.import_module(library)
    own.utils.set_random_seed(1)
    with tfdist.MultiWorkerMirroredStrategy().scope():
        model = own.Sequential([own.Input((columns,)), own.layers.Dense(1)])
        model.compile("sgd", "mse")
    x, y = np.ones((rows, columns), "float32"), np.ones((rows, 1), "float32")
    if data == "arrays":
        return model.fit(x, y, batch_size=16, verbose=0, **options)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(rows, seed=5).repeat()
    dataset = dataset.batch(16).map(lambda x, y: (x, y)).prefetch(2)
    return model.fit(dataset, steps_per_epoch=3, verbose=0, **options)


@pytest.mark.long("*tf_keras-*", covered_by="the other cases")
@pytest.mark.parametrize("data", ["arrays", "dataset"])
@pytest.mark.parametrize("library", ["keras", "tf_keras"])
@on_ranks(2, env={"TFDIST_ELASTIC": "1:2"})
def test_founders_with_other_rows(ctx, library, data):
    """A step cuts a whole batch by ranks: 3 of 83 rows, but 4 of 84, are in the last one."""
    if ctx.rank == 0:
        assert len(_fit_rows(library, data, 83).history["loss"]) == 1
        return
    differs = (
        "expected the same rows of fit number 1 on all .*: '83' as on worker 0.* received '84'"
    )
    with pytest.raises(TfdistError, match=differs):
        _fit_rows(library, data, 84)


@on_ranks(2, env={"TFDIST_ELASTIC": "1:2"})
def test_founders_with_other_models(ctx):
    """docs/guides/elastic.md explains this text."""
    if ctx.rank == 0:
        assert len(_fit_rows("keras", "arrays", 83, columns=3).history["loss"]) == 1
        return
    differs = (
        "expected the same variables of fit number 1 on all members: .* as on worker 0 .* "
        "received .*same program, with the same data"
    )
    with pytest.raises(TfdistError, match=differs):
        _fit_rows("keras", "arrays", 83, columns=4)


class _Until(keras.callbacks.Callback):
    """Ends the first epoch when the test says so."""

    def __init__(self, ctx):
        super().__init__()
        self._ctx = ctx

    def on_epoch_end(self, epoch, logs=None):
        self._ctx.report("trains")
        self._ctx.wait_for("refused", 60.0)


def _train_beside_a_newcomer(ctx):
    if ctx.rank < 2:
        return _fit_rows("keras", "arrays", 83, callbacks=[_Until(ctx)]).history
    ctx.wait_for("go", 60.0)
    differs = "'rows of fit number 1' differs: expected '83' as on worker [01] .* received '84'"
    with pytest.raises(ClusterConfigError, match=differs):
        _fit_rows("keras", "arrays", 84)
    ctx.report("refused")
    return {}


def test_a_newcomer_with_other_rows():
    with start_ranks(_train_beside_a_newcomer, 3, env={"TFDIST_ELASTIC": "1:3:2"}) as ranks:
        for rank in range(2):
            ranks.wait_for(rank, "trains")
        ranks.send(2, "go")
        ranks.wait_for(2, "refused")
        for rank in range(2):
            ranks.send(rank, "refused")
        outcomes = ranks.join(60.0)
    assert all(outcome.ok for outcome in outcomes), describe_all(outcomes)
