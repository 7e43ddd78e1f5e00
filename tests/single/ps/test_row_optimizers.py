"""Row optimizers and initializers, by name and from Keras."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tf_keras

import tfdist
from support.table_job import Worker, start_server
from tfdist import embedding
from tfdist.embedding import initializers, optimizers
from tfdist.ops.ps.table_config import InitializerKind


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sgd", embedding.SGD()),
        ("Adagrad", embedding.Adagrad()),
        ("rowwise_adagrad", embedding.RowWiseAdagrad()),
        ("exact_adam", embedding.Adam(exact_decay=True)),
        ("group_ftrl", embedding.GroupFtrl()),
        ("lamb", embedding.Lamb()),
        ("AdamW", embedding.AdamW(weight_decay=0.004)),
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
    "made",
    [
        embedding.RowWiseAdagrad(epsilon=0.5),
        embedding.Adam(exact_decay=True, beta_1=0.5),
        embedding.AdamW(weight_decay=0.5),
        embedding.Adafactor(clip_threshold=0.5),
    ],
)
def test_configuration_makes_an_equal_one(made):
    assert optimizers.get(made.get_config()) == made


def test_defaults_are_those_of_keras():
    elementwise = ("SGD", "Adagrad", "RMSprop", "Adam", "AdamW", "Adamax", "Nadam", "Adadelta")
    for name in (*elementwise, "Lion", "Ftrl", "Lamb", "Adafactor"):
        of_keras = getattr(keras.optimizers, name)()
        rate = of_keras.get_config()["learning_rate"]
        assert optimizers.get(of_keras) == getattr(embedding, name)(learning_rate=rate)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ("adamaxx", "expected one of sgd, adagrad"),
        (type("Other", (keras.optimizers.SGD,), {})(), "received <"),
        (keras.optimizers.Adam(weight_decay=0.5), "without weight_decay, received"),
        (keras.optimizers.Adam(clipnorm=1.0), "without clipnorm, received clipnorm=1.0"),
        (keras.optimizers.SGD(use_ema=True), "give it to the model's optimizer"),
        (3, "received 3"),
    ],
)
def test_unknown_optimizers(optimizer, message):
    with pytest.raises(ValueError, match=message):
        optimizers.get(optimizer)


def test_exact_decay_knows_neither_amsgrad_nor_weight_decay():
    with pytest.raises(ValueError, match="exact_decay or amsgrad"):
        embedding.Adam(exact_decay=True, amsgrad=True)
    with pytest.raises(ValueError, match="expected exact_decay=False"):
        embedding.AdamW(exact_decay=True)


_optimizers = keras.optimizers
LIKE_KERAS = {
    "adadelta": lambda: _optimizers.Adadelta(0.5, rho=0.9, epsilon=1e-3),
    "adamw": lambda: _optimizers.AdamW(0.01, weight_decay=0.3),
    "adamw_amsgrad": lambda: _optimizers.AdamW(0.01, weight_decay=0.3, beta_2=0.9, amsgrad=True),
    "adamax": lambda: _optimizers.Adamax(0.01, weight_decay=0.2),
    "nadam": lambda: _optimizers.Nadam(0.01, weight_decay=0.2),
    "lion": lambda: _optimizers.Lion(0.01, weight_decay=0.2),
    "adafactor": lambda: _optimizers.Adafactor(0.2, weight_decay=0.2, clip_threshold=0.7),
    "lamb": lambda: _optimizers.Lamb(0.05, weight_decay=0.2),
}


@pytest.mark.parametrize("name", LIKE_KERAS)
def test_rows_step_as_keras_steps_variables_of_one_row(name):
    """The oracle: Keras with a variable for each row, given the variables that have a gradient."""
    count, width, steps = 6, 5, 12
    optimizer = LIKE_KERAS[name]()
    table = tfdist.EmbeddingTable("t", width, optimizer=optimizer, initializer="normal")
    config = table.config()
    worker = Worker([start_server()])
    fields = {field: getattr(config, field) for field, _ in config._fields_ if field != "width"}
    made = worker.table("t", width, **fields)
    ids = np.arange(count) * 1_000_003
    variables = [keras.Variable(row) for row in worker.lookup(made, ids)]
    optimizer.build(variables)
    random = np.random.default_rng(5)
    moved = 0.0
    for step in range(steps):
        # The last row has its first gradient late.
        some = [0] + [i for i in range(1, count) if random.random() < 0.6 and (i < 5 or step > 8)]
        gradients = random.normal(scale=0.5, size=[len(some), width]).astype(np.float32)
        before = np.array([v.numpy() for v in variables])
        optimizer.apply([*map(keras.ops.array, gradients)], [variables[i] for i in some])
        worker.push(made, ids[some], gradients, rate=float(optimizer.learning_rate))
        expected = np.array([v.numpy() for v in variables])
        got = worker.lookup(made, ids, training=False)
        np.testing.assert_allclose(got, expected, rtol=0, atol=3e-6)
        moved = max(moved, np.abs(expected - before).max())
    assert moved > 1e-3


KINDS = InitializerKind


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
