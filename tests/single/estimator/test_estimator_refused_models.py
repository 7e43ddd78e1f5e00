"""Models of Keras 3 that `model_to_estimator` refuses; the error names the reason."""

from __future__ import annotations

import keras
import pytest

from support.estimator.estimator_data import ignore_warnings
from tfdist import estimator
from tfdist.estimator.keras3.models import to_tf_keras

pytestmark = ignore_warnings
layers = keras.layers


class Doubled(layers.Layer):
    def call(self, x):
        return 2 * x


class Subclassed(keras.Model):
    def call(self, x):
        return x


def functional(*middle, output=lambda x: x):
    inputs = keras.Input((6,))
    x = inputs
    for layer in middle:
        x = layer(x)
    return keras.Model(inputs, output(x))


REFUSED = {
    "own layer": (lambda: functional(Doubled(name="mine")), TypeError, "'mine' of .*Doubled"),
    "lambda": (lambda: functional(layers.Lambda(lambda x: x)), TypeError, "Lambda"),
    "random": (lambda: functional(layers.RandomFlip(name="flip")), TypeError, "RandomFlip"),
    "activation": (
        lambda: functional(layers.Dense(2, activation="hard_sigmoid", name="hard")),
        ValueError,
        "layer 'hard' of .*Dense: expected as activation one of .* received 'hard_sigmoid'",
    ),
    "own activation": (
        lambda: functional(layers.Dense(2, activation=lambda x: x)),
        ValueError,
        "expected as activation one of",
    ),
    "setting": (
        lambda: functional(layers.Dense(2, lora_rank=1, name="low")),
        ValueError,
        "layer 'low' of .*: expected lora_rank=None, for tf_keras has no lora_rank, received 1",
    ),
    "operation": (lambda: functional(output=lambda x: x * 2), TypeError, "ops.numpy.Multiply"),
    "computed mask": (
        lambda: keras.Model(
            i := keras.Input((5, 6)), layers.LSTM(2)(i, mask=keras.ops.any(i > 0, axis=-1))
        ),
        TypeError,
        "received the operation 'any",
    ),
    "subclass": (lambda: Subclassed(name="mine"), TypeError, "'mine' of .*Subclassed"),
    "no shape": (
        lambda: keras.Sequential([layers.Dense(1)], name="open"),
        ValueError,
        "received 'open', which does not: begin it with keras.Input",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore:The object being serialized includes a `lambda`:UserWarning")
def test_what_cannot_be_converted_is_named(name):
    make, error, message = REFUSED[name]
    with pytest.raises(error, match=message) as raised:
        to_tf_keras(make())
    assert "tf_keras" in str(raised.value) or "keras.Input" in str(raised.value)


def compiled_model(**compiled):
    model = functional(layers.Dense(1))
    model.compile(**{"optimizer": "sgd", "loss": "mse", **compiled})
    return model


class OwnLoss(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return y_pred


REFUSED_COMPILED = {
    "optimizer": ({"optimizer": "nadam"}, TypeError, "received keras.*Nadam"),
    "decay": (
        {"optimizer": keras.optimizers.Adam(weight_decay=0.1)},
        ValueError,
        "expected Adam without weight_decay, .* received weight_decay=0.1",
    ),
    "loss": ({"loss": OwnLoss()}, TypeError, "expected a loss of Keras .* received .*OwnLoss"),
    "loss by name": ({"loss": "dice"}, TypeError, "received 'dice'"),
    "reduction": (
        {"loss": keras.losses.MeanSquaredError(reduction=None)},
        ValueError,
        "expected as reduction one of .* received None",
    ),
    "metric": (
        {"metrics": [keras.metrics.MeanMetricWrapper(lambda y, p: p)]},
        TypeError,
        "expected a metric of Keras .*MeanMetricWrapper",
    ),
}


@pytest.mark.parametrize("name", REFUSED_COMPILED)
def test_what_it_is_compiled_with_and_tf_keras_has_not_is_named(name):
    compiled, error, message = REFUSED_COMPILED[name]
    with pytest.raises(error, match=message):
        to_tf_keras(compiled_model(**compiled))


def test_a_model_that_is_not_compiled_is_refused(tmp_path):
    model = keras.Sequential([keras.Input((3,)), layers.Dense(1)])
    with pytest.raises(ValueError, match="has not been compiled yet"):
        estimator.model_to_estimator(model, model_dir=str(tmp_path))
