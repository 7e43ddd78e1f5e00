"""Canned estimators train, evaluate, predict and export; columns, optimizers and hooks."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from support.estimator.estimator_data import (
    ROWS,
    features,
    ignore_warnings,
    input_fn,
    labels,
    predictions,
    values,
)
from tfdist import estimator

pytestmark = ignore_warnings
columns = tf.feature_column
v1 = tf.compat.v1

NUMBERS = columns.numeric_column("x", shape=(3,))
AGES = columns.bucketized_column(columns.numeric_column("age"), [20, 40, 60])
CITIES = columns.categorical_column_with_vocabulary_list("city", ["a", "b", "c"])
JOBS = columns.categorical_column_with_identity("job", 5)
WIDE = [NUMBERS, CITIES]
DEEP = [NUMBERS, columns.indicator_column(CITIES), columns.embedding_column(JOBS, 2)]
COMBINED = {
    "linear_feature_columns": WIDE,
    "dnn_feature_columns": DEEP,
    "dnn_hidden_units": [4],
}

# Name: how to make it, which labels, and a key of its predictions.
CANNED = {
    "BaselineClassifier": ({}, "two", "probabilities"),
    "BaselineRegressor": ({}, "number", "predictions"),
    "BaselineEstimator": ({"head": "MultiClassHead(3)"}, "three", "probabilities"),
    "LinearClassifier": ({"feature_columns": WIDE, "n_classes": 3}, "three", "probabilities"),
    "LinearRegressor": ({"feature_columns": WIDE}, "number", "predictions"),
    "LinearEstimator": (
        {"feature_columns": WIDE, "head": "LogisticRegressionHead()"},
        "two",
        "predictions",
    ),
    "DNNClassifier": (
        {"feature_columns": DEEP, "hidden_units": [4], "dropout": 0.1, "batch_norm": True},
        "two",
        "probabilities",
    ),
    "DNNRegressor": ({"feature_columns": DEEP, "hidden_units": [4]}, "number", "predictions"),
    "DNNEstimator": (
        {"feature_columns": DEEP, "hidden_units": [4], "head": "MultiLabelHead(2)"},
        "several",
        "probabilities",
    ),
    "DNNLinearCombinedClassifier": (COMBINED, "two", "probabilities"),
    "DNNLinearCombinedRegressor": (COMBINED, "number", "predictions"),
    "DNNLinearCombinedEstimator": (
        {**COMBINED, "head": "PoissonRegressionHead()"},
        "count",
        "predictions",
    ),
}


class Losses(estimator.SessionRunHook):
    """Keeps the loss of each step."""

    def __init__(self):
        self.seen = []

    def before_run(self, run_context):
        return estimator.SessionRunArgs(v1.get_collection(v1.GraphKeys.LOSSES)[-1])

    def after_run(self, run_context, run_values):
        self.seen.append(run_values.results)


def make(name: str, model_dir, **options):
    if "head" in options:
        options["head"] = eval(options["head"], {**vars(estimator)})
    config = estimator.RunConfig(str(model_dir), tf_random_seed=1)
    return getattr(estimator, name)(config=config, **options)


def serialized_examples() -> list[bytes]:
    """The rows of `features` as `tf.train.Example`s."""
    kinds = {"f": ("float_list", float), "i": ("int64_list", int), "U": ("bytes_list", str.encode)}
    rows = []
    for row in range(ROWS):
        example = tf.train.Example()
        for name, column in features().items():
            field, convert = kinds[column.dtype.kind]
            target = getattr(example.features.feature[name], field).value
            target.extend(convert(value) for value in np.atleast_1d(column[row]))
        rows.append(example.SerializeToString())
    return rows


@pytest.mark.long(
    "DNNLinearCombined*",
    "*Estimator",
    "LinearRegressor",
    "DNNRegressor",
    "BaselineClassifier",
    covered_by="the other cases",
)
@pytest.mark.parametrize("name", CANNED)
def test_trains_evaluates_predicts_and_exports(name, tmp_path):
    options, label, key = CANNED[name]
    made = make(name, tmp_path / "model", **options)
    whole, losses = input_fn(label, batch=ROWS), Losses()
    made.train(whole, hooks=[losses], steps=40)
    # Dropout makes single ones differ.
    assert np.mean(losses.seen[-5:]) < np.mean(losses.seen[:5])
    evaluated = made.evaluate(whole, steps=1)
    assert evaluated["global_step"] == 40
    # After 40 steps the moving statistics of a batch normalization have hardly moved.
    assert evaluated["loss"] < losses.seen[0] or "batch_norm" in options
    predicted = predictions(made, key)
    assert len(predicted) == ROWS and np.isfinite(predicted).all()

    parse = columns.make_parse_example_spec([*WIDE, AGES, JOBS])
    receiver = estimator.export.build_parsing_serving_input_receiver_fn(parse)
    path = made.export_saved_model(str(tmp_path / "exported"), receiver).decode()
    serve = tf.saved_model.load(path).signatures["predict"]
    np.testing.assert_allclose(
        serve(tf.constant(serialized_examples()))[key], predicted, rtol=0, atol=1e-6
    )


@pytest.mark.long(covered_by="test_trains_evaluates_predicts_and_exports")
def test_several_heads(tmp_path):
    heads = [estimator.BinaryClassHead(name="two"), estimator.RegressionHead(name="number")]
    head = estimator.MultiHead(heads)
    made = estimator.DNNEstimator(head, [4], [NUMBERS], model_dir=str(tmp_path))

    def train():
        given = {name: labels()[name] for name in ("two", "number")}
        return tf.data.Dataset.from_tensor_slices((features(), given)).batch(16)

    made.train(train)
    evaluated = made.evaluate(train)
    assert evaluated["loss"] == pytest.approx(
        evaluated["loss/two"] + evaluated["loss/number"], rel=1e-5
    )
    assert predictions(made, ("number", "predictions")).shape == (ROWS, 1)


@pytest.mark.long(covered_by="test_trains_evaluates_predicts_and_exports")
def test_columns_of_all_kinds(tmp_path):
    words = tmp_path / "words"
    words.write_text("a\nb\n")
    hashed = columns.categorical_column_with_hash_bucket("city", 8)
    from_file = columns.categorical_column_with_vocabulary_file("city", str(words))
    weighted = columns.weighted_categorical_column(JOBS, "age")
    crossed = columns.crossed_column([AGES, "city"], 16)
    wide = [AGES, hashed, crossed, weighted]
    deep = [
        columns.numeric_column("x", shape=(3,), normalizer_fn=lambda x: x / 2),
        columns.indicator_column(crossed),
        columns.embedding_column(from_file, 2, combiner="sum"),
        columns.embedding_column(
            weighted, 2, initializer=tf.keras.initializers.RandomUniform(-1, 1)
        ),
    ]
    made = estimator.DNNLinearCombinedClassifier(
        model_dir=str(tmp_path / "model"),
        linear_feature_columns=wide,
        dnn_feature_columns=deep,
        dnn_hidden_units=[4],
    )
    made.train(input_fn(), steps=3)
    assert made.evaluate(input_fn(), steps=4)["global_step"] == 3


@pytest.mark.long("simple_rnn", "gru", "own", covered_by="the other cases")
@pytest.mark.parametrize("cell", ["simple_rnn", "lstm", "gru", "own"])
def test_recurrent(cell, tmp_path):
    def sequences():
        random = np.random.default_rng(1)
        number = tf.sparse.from_dense(random.normal(size=(ROWS, 4)).astype("float32"))
        word = tf.sparse.from_dense(random.integers(1, 5, (ROWS, 4)))
        given = {"number": number, "word": word, "x": features()["x"]}
        return tf.data.Dataset.from_tensor_slices((given, labels()["two"])).batch(16)

    words = columns.sequence_categorical_column_with_identity("word", 5)
    sequence = [columns.sequence_numeric_column("number"), columns.embedding_column(words, 2)]
    kind = {"units": [3, 2], "cell_type": cell}
    if cell == "own":
        kind = {"rnn_cell_fn": lambda: tf.keras.layers.LSTMCell(3)}
    made = estimator.experimental.RNNClassifier(
        sequence, [NUMBERS], model_dir=str(tmp_path), optimizer="Adam", **kind
    )
    losses = Losses()
    made.train(lambda: sequences().repeat(3), hooks=[losses])
    assert made.evaluate(sequences)["loss"] < np.mean(losses.seen[:4])
    assert len(list(made.predict(sequences))) == ROWS


@pytest.mark.parametrize(
    "optimizer",
    [
        "SGD",
        tf.keras.optimizers.SGD(0.1),
        tf.keras.optimizers.legacy.SGD(0.1),
        lambda: tf.keras.optimizers.legacy.SGD(
            v1.train.exponential_decay(0.1, v1.train.get_global_step(), 100, 1.0)
        ),
        tf.keras.optimizers.SGD(
            tf.keras.optimizers.schedules.PiecewiseConstantDecay([100], [0.1, 0.0])
        ),
    ],
    ids=["name", "instance", "legacy", "callable", "schedule"],
)
def test_optimizers(optimizer, tmp_path):
    """One step of gradient descent from zero moves the bias by the rate times the mean gradient."""
    made = estimator.LinearClassifier([NUMBERS], model_dir=str(tmp_path), optimizer=optimizer)
    made.train(input_fn(batch=ROWS), steps=1)
    rate = 0.2 if optimizer == "SGD" else 0.1  # by default the package's own
    moved = rate * (labels()["two"].mean() - 0.5)
    (bias,) = (v for name, v in values(made).items() if name.endswith("bias_weights"))
    np.testing.assert_allclose(bias, [moved], rtol=1e-5)


def test_an_optimizer_of_tensorflow_1_is_refused(tmp_path):
    with pytest.raises(ValueError, match="not a tf.keras.optimizers.Optimizer instance"):
        estimator.DNNClassifier(
            [4], [NUMBERS], model_dir=str(tmp_path), optimizer=v1.train.AdamOptimizer()
        ).train(input_fn(), steps=1)


@pytest.mark.long(covered_by="test_trains_evaluates_predicts_and_exports")
def test_estimators_of_tensorflow_1(tmp_path):
    made = v1.estimator.DNNClassifier(
        [4], DEEP, model_dir=str(tmp_path), optimizer=v1.train.AdamOptimizer(0.05)
    )
    losses = Losses()
    made.train(input_fn(batch=ROWS), hooks=[losses], steps=6)
    assert made.evaluate(input_fn(batch=ROWS), steps=1)["loss"] < losses.seen[0]


def test_warm_start(tmp_path):
    first = estimator.DNNClassifier([4], DEEP, model_dir=str(tmp_path / "first"))
    first.train(input_fn(), steps=3)
    settings = estimator.WarmStartSettings(str(tmp_path / "first"), vars_to_warm_start=".*hidden.*")
    second = estimator.DNNClassifier(
        [4], DEEP, model_dir=str(tmp_path / "second"), optimizer="SGD", warm_start_from=settings
    )
    second.train(input_fn(), steps=1)
    checkpoint = str(tmp_path / "second" / "model.ckpt-0")
    kernel, logits = "dnn/hiddenlayer_0/kernel", "dnn/logits/kernel"
    started = tf.train.load_checkpoint(checkpoint)
    np.testing.assert_array_equal(started.get_tensor(kernel), values(first)[kernel])
    assert not np.array_equal(started.get_tensor(logits), values(first)[logits])


@pytest.mark.long(
    covered_by="parallel/estimator/test_estimator_ends.py::test_early_stopping_with_all_reduce"
)
def test_early_stopping(tmp_path):
    made = estimator.LinearClassifier(
        [NUMBERS],
        model_dir=str(tmp_path),
        optimizer=tf.keras.optimizers.legacy.SGD(0.0),
        config=estimator.RunConfig(save_checkpoints_steps=5),
    )
    hook = estimator.experimental.stop_if_no_decrease_hook(
        made, "loss", max_steps_without_decrease=10, run_every_secs=None, run_every_steps=5
    )
    estimator.train_and_evaluate(
        made,
        estimator.TrainSpec(input_fn(), max_steps=200, hooks=[hook]),
        estimator.EvalSpec(input_fn(), steps=1, start_delay_secs=0, throttle_secs=0),
    )
    assert 10 <= made.get_variable_value("global_step") < 60


def test_evaluation_in_memory(tmp_path):
    made = estimator.LinearClassifier([NUMBERS], model_dir=str(tmp_path))
    hook = estimator.experimental.InMemoryEvaluatorHook(
        made, input_fn(batch=ROWS), steps=1, every_n_iter=2
    )
    made.train(input_fn(), hooks=[hook], steps=5)
    assert list((tmp_path / "eval").glob("events.*"))


def test_a_hook_that_stops_at_a_checkpoint(tmp_path):
    made = estimator.LinearClassifier([NUMBERS], model_dir=str(tmp_path))
    made.train(input_fn(), steps=3)
    hook = estimator.experimental.make_stop_at_checkpoint_step_hook(made, last_step=3)
    made.train(input_fn(), hooks=[hook], max_steps=100)
    assert made.get_variable_value("global_step") == 4
