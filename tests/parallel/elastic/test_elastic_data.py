"""Elastic `fit` refuses data that its workers would read in different orders."""

from __future__ import annotations

import keras
import ledger
import pytest
import tensorflow as tf
from ranks import on_ranks

import tfdist
from tfdist.errors import TfdistError

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
