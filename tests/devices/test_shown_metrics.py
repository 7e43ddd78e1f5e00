"""Logs of metrics that a `train_step` returns under other names, on several devices."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from devices.replicas import make_strategy
from support.training.renamed_metrics import logged, model_of
from tfdist.keras.shown_metrics import noting


@pytest.mark.long("False", covered_by="the other cases")
@pytest.mark.parametrize("decorated", [False, True])
def test_logs_are_those_of_one_replica(decorated):
    found = logged(keras, make_strategy("mirrored", 2), decorated)
    expected = logged(keras, tf.distribute.get_strategy(), decorated)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_metrics_are_as_before_after_a_step_that_fails():
    model = model_of(keras)

    def train_step(data):
        assert "result" in vars(model.total)
        raise ValueError("this step fails")

    with pytest.raises(ValueError, match="this step fails"):
        noting(model, "train", train_step)(None)
    assert "result" not in vars(model.total)


def test_a_step_of_keras_is_left_as_it_is():
    step = keras.Sequential().train_step
    assert noting(keras.Sequential(), "train", step) is step
