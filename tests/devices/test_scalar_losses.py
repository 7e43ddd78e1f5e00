"""Losses that return one number for a batch: replicas train and log as one process does."""

from __future__ import annotations

import functools
import logging

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from devices.replicas import make_strategy
from support.tiers import chosen
from support.training import scalar_losses
from support.training.scalar_losses import LOSSES, trained

alone = functools.cache(functools.partial(trained, strategy=None))


# Batches of 7 rows, and one of 3; two replicas have different ones.
@pytest.mark.long("mean-central", "sum by batch-mirrored", covered_by="the other cases")
@pytest.mark.parametrize("kind", ["mirrored", "central"])
@pytest.mark.parametrize("name", chosen(LOSSES, "mean", "sum by batch"))
def test_fit_and_evaluate(kind, name):
    weights, losses = trained(keras, name, make_strategy(kind, 2))
    expected, expected_losses = alone(keras, name)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    for one, other in zip(weights, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("name", chosen(LOSSES, "sum by batch"))
def test_tf_keras(name):
    weights, losses = trained(tf_keras, name, make_strategy("mirrored", 2))
    expected, expected_losses = alone(tf_keras, name)
    for one, other in zip(weights, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    # tf_keras logs sums as if all replicas had as many rows.
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5 if name == "mean" else 0.05)


def _of_all_rows(y_true, y_pred):
    """Compares each row with all others, as contrastive losses do."""
    return tf.reduce_logsumexp(tf.matmul(y_true, y_pred, transpose_b=True))


def test_a_loss_that_cannot_be_told_is_a_mean_and_says_so(monkeypatch, caplog):
    monkeypatch.setitem(LOSSES, "of all rows", lambda library: _of_all_rows)
    with caplog.at_level(logging.WARNING, "tfdist"):
        trained(keras, "of all rows", make_strategy("mirrored", 2))
    (message,) = {record.getMessage() for record in caplog.records}
    assert "'_of_all_rows' returns one number for a batch" in message
    assert "with each row twice" in message and "mean over the rows" in message


def test_a_loss_that_divides_by_the_replicas_is_left_alone(monkeypatch):
    def divided(y_true, y_pred):
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        return scalar_losses.mean(y_true, y_pred) / replicas

    for name in ("ROWS", "BATCH"):
        monkeypatch.setattr(scalar_losses, name, 14)
    monkeypatch.setitem(LOSSES, "divided", lambda library: divided)
    found, expected = (
        trained(keras, "divided", strategy)[0] for strategy in (make_strategy("mirrored", 2), None)
    )
    np.testing.assert_allclose(found[0], expected[0], atol=1e-6)
