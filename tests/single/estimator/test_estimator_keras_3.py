"""Features of Keras 3 in a model_fn, where tf_keras differs or refuses."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from support.estimator.estimator_data import ROWS, ignore_warnings, input_fn, values
from support.estimator.estimator_models import (
    assert_one_step,
    head_model_fn,
    make_estimator,
    sequential,
    train_evaluate_predict,
)
from tfdist import estimator

pytestmark = ignore_warnings
layers = tf.keras.layers


def test_moving_statistics_need_not_be_asked_for(tmp_path):
    made = make_estimator(sequential(layers.BatchNormalization), tmp_path)
    train_evaluate_predict(made)
    assert np.any(values(made)["sequential/batch_normalization/moving_mean"] != 0)


def test_a_head_with_an_optimizer_of_keras_3(tmp_path):
    made = estimator.Estimator(
        head_model_fn(lambda: tf.keras.optimizers.SGD(0.1)), model_dir=str(tmp_path)
    )
    made.train(input_fn(batch=ROWS), steps=1)
    assert_one_step(values(made)["sequential/dense/bias"])
    assert made.get_variable_value("global_step") == 1


def test_an_optimizer_of_keras_3_that_would_update_nothing_is_refused(tmp_path):
    def train(loss, model):
        gradients = tf.gradients(loss, model.trainable_variables)
        pairs = zip(gradients, model.trainable_variables, strict=True)
        return tf.keras.optimizers.SGD(0.1).apply_gradients(pairs)

    with pytest.raises(TypeError, match="tf_keras.optimizers.legacy or tf.compat.v1.train"):
        make_estimator(sequential(), tmp_path, train).train(input_fn("column"), steps=1)


def test_weights_set_in_a_model_fn_are_refused(tmp_path):
    def build(x, training):
        model, logits = sequential()(x, training)
        model.set_weights([np.ones(v.shape) for v in model.weights])
        return model, logits

    with pytest.raises(RuntimeError, match="one to 'sequential/dense/kernel', which would be"):
        make_estimator(build, tmp_path).train(input_fn("column"), steps=1)
