"""Row optimizers and initializers, by name and from Keras."""

from __future__ import annotations

import keras
import pytest
import tf_keras

from tfdist import embedding, ops
from tfdist.embedding import initializers, optimizers


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sgd", embedding.SGD()),
        ("Adagrad", embedding.Adagrad()),
        ("rowwise_adagrad", embedding.RowWiseAdagrad()),
        ("exact_adam", embedding.Adam(exact_decay=True)),
        ("group_ftrl", embedding.GroupFtrl()),
        ({"name": "adagrad", "epsilon": 0.5}, embedding.Adagrad(epsilon=0.5)),
    ],
)
def test_by_name(name, expected):
    assert optimizers.get(name) == expected


@pytest.mark.parametrize("library", [keras, tf_keras])
def test_from_keras(library):
    made = optimizers.get(library.optimizers.Adam(0.25, beta_1=0.5, epsilon=1e-3))
    assert made == embedding.Adam(learning_rate=0.25, beta_1=0.5, epsilon=1e-3)
    made = optimizers.get(library.optimizers.Ftrl(0.5, initial_accumulator_value=0.25, beta=0.125))
    assert made == embedding.Ftrl(learning_rate=0.5, initial_accumulator_value=0.25, beta=0.125)


@pytest.mark.parametrize("library", [keras, tf_keras])
def test_a_schedule_stays_one(library):
    schedule = library.optimizers.schedules.ExponentialDecay(1.0, 1, 0.5)
    made = optimizers.get(library.optimizers.SGD(schedule))
    assert float(made.learning_rate(2)) == 0.25


@pytest.mark.parametrize(
    "made", [embedding.RowWiseAdagrad(epsilon=0.5), embedding.Adam(exact_decay=True, beta_1=0.5)]
)
def test_configuration_makes_an_equal_one(made):
    assert optimizers.get(made.get_config()) == made


def test_defaults_are_those_of_keras():
    for name in ("SGD", "Adagrad", "RMSprop", "Adam", "Ftrl"):
        rate = keras.optimizers.get(name).get_config()["learning_rate"]
        assert optimizers.get(getattr(keras.optimizers, name)()) == getattr(embedding, name)(
            learning_rate=rate
        )


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ("adamax", "expected one of sgd, adagrad"),
        (keras.optimizers.Nadam(), "received <keras"),
        (keras.optimizers.Adam(clipnorm=1.0), "without clipnorm, received clipnorm=1.0"),
        (keras.optimizers.SGD(use_ema=True), "give it to the model's optimizer"),
        (3, "received 3"),
    ],
)
def test_unknown_optimizers(optimizer, message):
    with pytest.raises(ValueError, match=message):
        optimizers.get(optimizer)


def test_exact_decay_knows_no_amsgrad():
    with pytest.raises(ValueError, match="exact_decay or amsgrad"):
        embedding.Adam(exact_decay=True, amsgrad=True)


KINDS = ops.InitializerKind


@pytest.mark.parametrize(
    ("initializer", "rows", "expected"),
    [
        ("uniform", None, (KINDS.UNIFORM, -0.05, 0.05)),
        ("zeros", None, (KINDS.CONSTANT, 0.0, 0.0)),
        (keras.initializers.Constant(0.5), None, (KINDS.CONSTANT, 0.5, 0.0)),
        (keras.initializers.RandomUniform(-2.0, 1.0), None, (KINDS.UNIFORM, -2.0, 1.0)),
        (tf_keras.initializers.RandomNormal(1.0, 2.0), None, (KINDS.NORMAL, 1.0, 2.0)),
        (
            keras.initializers.TruncatedNormal(0.0, 2.0),
            None,
            (KINDS.TRUNCATED_NORMAL, 0.0, 2.0),
        ),
        # sqrt(6 / (92 + 4))
        ("glorot_uniform", 92, (KINDS.UNIFORM, -0.25, 0.25)),
    ],
)
def test_initializers(initializer, rows, expected):
    made = initializers.get(initializer, "t", rows, 4)
    assert (made.kind, made.a, made.b) == pytest.approx(expected)


def test_the_seed_is_the_users_or_the_tables():
    def seed(initializer, table):
        return initializers.get(initializer, table, None, 4).seed

    assert seed("uniform", "a") == seed(keras.initializers.RandomUniform(), "a")
    assert seed("uniform", "a") != seed("uniform", "b")
    assert seed(keras.initializers.RandomUniform(seed=7), "a") == 7


@pytest.mark.parametrize(
    ("initializer", "message"),
    [
        ("glorot_uniform", "scales by the number of rows"),
        (keras.initializers.Orthogonal(), "expected one of zeros"),
        (lambda shape, dtype=None: 0, "expected one of zeros"),
    ],
)
def test_initializers_that_servers_cannot_compute(initializer, message):
    with pytest.raises(ValueError, match=message):
        initializers.get(initializer, "t", None, 4)
