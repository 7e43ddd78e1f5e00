"""Exporters of `train_and_evaluate`; what they write loads where there is only TensorFlow."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

from support.estimator.estimator_data import (
    features,
    ignore_warnings,
    input_fn,
    predictions,
    run_python,
)
from tfdist import estimator

pytestmark = ignore_warnings
columns = tf.feature_column

# Prints what each SavedModel named on the command line computes from the features in a file.
SERVE = """
import json, sys
import tensorflow as tf
answers = []
for path in sys.argv[2:]:
    loaded = tf.saved_model.load(path)
    given = {k: tf.constant(v) for k, v in json.load(open(sys.argv[1])).items()}
    answer = loaded.signatures[SIGNATURE](**given)
    answers.append({k: v.numpy().tolist() for k, v in answer.items() if v.dtype != tf.string})
foreign = ("tensorflow_estimator", "tfdist", "tf_keras")
print(json.dumps([answers, [m for m in sys.modules if m.startswith(foreign)]]))
"""


def serve(paths, directory, signature="predict"):
    given = directory / "features.json"
    given.write_text(json.dumps({name: features()[name].tolist() for name in ("x", "city")}))
    program = SERVE.replace("SIGNATURE", repr(signature))
    answers, foreign = json.loads(
        run_python(program, str(given), *map(str, paths), TF_USE_LEGACY_KERAS="0").splitlines()[-1]
    )
    assert foreign == []
    return answers


def receiver():
    placeholders = {
        "x": tf.compat.v1.placeholder(tf.float32, [None, 3], name="x"),
        "city": tf.compat.v1.placeholder(tf.string, [None], name="city"),
    }
    return estimator.export.ServingInputReceiver(placeholders, placeholders)


@pytest.mark.long(
    covered_by="test_all_modes_in_one_saved_model, single/estimator/test_estimator_canned.py"
)
def test_exporters(tmp_path):
    cities = columns.categorical_column_with_vocabulary_list("city", ["a", "b", "c"])
    made = estimator.DNNLinearCombinedClassifier(
        model_dir=str(tmp_path / "model"),
        linear_feature_columns=[columns.numeric_column("x", shape=(3,))],
        dnn_feature_columns=[columns.embedding_column(cities, 2)],
        dnn_hidden_units=[4],
        config=estimator.RunConfig(save_checkpoints_steps=2),
    )
    exporters = [
        estimator.BestExporter("best", receiver, exports_to_keep=1),
        estimator.LatestExporter("latest", receiver, exports_to_keep=2),
        estimator.FinalExporter("final", receiver),
    ]
    estimator.train_and_evaluate(
        made,
        estimator.TrainSpec(input_fn(), max_steps=4),
        estimator.EvalSpec(
            input_fn(), steps=4, exporters=exporters, start_delay_secs=0, throttle_secs=0
        ),
    )
    exported = {
        name: sorted((tmp_path / "model" / "export" / name).iterdir())
        for name in ("best", "latest", "final")
    }
    assert {name: len(paths) for name, paths in exported.items()} == {
        "best": 1,
        "latest": 2,
        "final": 1,
    }
    expected = predictions(made, "probabilities")
    for answer in serve([exported["final"][0], exported["latest"][-1]], tmp_path):
        np.testing.assert_allclose(answer["probabilities"], expected, rtol=0, atol=1e-6)


@pytest.mark.long(covered_by="test_all_modes_in_one_saved_model")
def test_a_model_fn_of_keras_layers_without_keras(tmp_path):
    def model_fn(features, labels, mode):
        layers = [tf.keras.layers.Dense(4, activation="tanh"), tf.keras.layers.Dense(1)]
        logits = tf.keras.Sequential(layers)(features["x"])
        answer = {"probability": tf.sigmoid(logits)}
        if mode == estimator.ModeKeys.PREDICT:
            outputs = {"serving_default": estimator.export.PredictOutput(answer)}
            return estimator.EstimatorSpec(mode, predictions=answer, export_outputs=outputs)
        loss = tf.reduce_mean((tf.cast(labels[:, None], tf.float32) - logits) ** 2)
        step = tf.compat.v1.train.get_or_create_global_step()
        train = tf.compat.v1.train.AdamOptimizer().minimize(loss, step)
        return estimator.EstimatorSpec(mode, loss=loss, train_op=train)

    made = estimator.Estimator(model_fn, model_dir=str(tmp_path / "model"))
    made.train(input_fn(only=["x"]), steps=3)
    path = made.export_saved_model(str(tmp_path / "exported"), receiver).decode()
    (answer,) = serve([path], tmp_path, "serving_default")
    expected = predictions(made, "probability", only=["x"])
    np.testing.assert_allclose(answer["probability"], expected, rtol=0, atol=1e-6)


def test_all_modes_in_one_saved_model(tmp_path):
    made = estimator.LinearClassifier(
        [columns.numeric_column("x", shape=(3,))], model_dir=str(tmp_path / "model")
    )
    made.train(input_fn(), steps=2)

    def supervised():
        numbers = {"x": tf.compat.v1.placeholder(tf.float32, [None, 3])}
        classes = tf.compat.v1.placeholder(tf.int32, [None])
        make = estimator.experimental.build_raw_supervised_input_receiver_fn
        return make(numbers, classes)()

    path = made.experimental_export_all_saved_models(
        str(tmp_path / "exported"),
        {estimator.ModeKeys.EVAL: supervised, estimator.ModeKeys.PREDICT: receiver},
    ).decode()
    loaded = tf.compat.v1.saved_model.load
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        evaluation = loaded(session, ["eval"], path).signature_def["eval"]
        assert "metrics/accuracy/value" in evaluation.outputs
    assert "predict" in tf.saved_model.load(path, tags=["serve"]).signatures
