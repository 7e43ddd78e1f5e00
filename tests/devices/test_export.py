"""Models trained by a strategy run without tfdist."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from devices.replicas import make_strategy
from support.training import models
from support.training.models import EXACT, classifier, difference

KINDS = ("mirrored", "central")
FORMS = ("export", "tf_keras_export", "saved_model", "concrete", "module", "keras_file")
ROWS = 10

# Loads the model in each directory and saves its outputs. Runs without tfdist.
SERVER = """
import sys
from pathlib import Path
import numpy as np
import tensorflow as tf
import keras
root = Path(sys.argv[1])
rows = np.load(root / "rows.npy")
for directory in sorted(path for path in root.iterdir() if path.is_dir()):
    if directory.name.endswith("keras_file"):
        answer = keras.models.load_model(directory / "model.keras").predict(rows, verbose=0)
    else:
        loaded = tf.saved_model.load(str(directory))
        (answer,) = loaded.signatures["serving_default"](tf.constant(rows)).values()
    np.save(directory / "answer.npy", answer)
assert not [name for name in sys.modules if name.startswith("tfdist")]
"""


def _trained(strategy: tf.distribute.Strategy, library=keras):
    with strategy.scope():
        model = classifier("adam", library=library, middle=[library.layers.BatchNormalization()])
    model.fit(models.dataset(128, 32), verbose=0)
    return model


def _module(strategy: tf.distribute.Strategy) -> tf.Module:
    """Multiplies rows by a weight and adds a sum to which each replica has added its number."""
    module = tf.Module()
    with strategy.scope():
        module.weight = tf.Variable(tf.reshape(tf.range(1.0, 7.0), (models.COLUMNS, 1)))
        module.total = tf.Variable(
            0.0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
            trainable=False,
        )

    @tf.function(input_signature=[tf.TensorSpec([None, models.COLUMNS])])
    def serve(rows):
        return rows @ module.weight + module.total

    def step():
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        module.total.assign_add(tf.cast(number, tf.float32) + 1.0)

    strategy.run(step)
    module.serve = serve
    return module


def _save_all(kind: str, root: Path, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Saves in every form, each in its own directory; returns the expected outputs."""
    strategy = make_strategy(kind, 2)
    directories = {form: root / f"{kind}-{form}" for form in FORMS}

    module = _module(strategy)
    tf.saved_model.save(module, str(directories["module"]), signatures=module.serve)

    model = _trained(strategy)
    model.export(str(directories["export"]))
    tf.saved_model.save(model, str(directories["saved_model"]))
    traced = tf.function(lambda rows: model(rows, training=False)).get_concrete_function(
        tf.TensorSpec([None, models.COLUMNS])
    )
    tf.saved_model.save(model, str(directories["concrete"]), signatures=traced)
    directories["keras_file"].mkdir()
    model.save(directories["keras_file"] / "model.keras")

    old_model = _trained(strategy, tf_keras)
    old_model.export(str(directories["tf_keras_export"]))

    return {
        **dict.fromkeys(FORMS, np.asarray(model(rows, training=False))),
        "tf_keras_export": np.asarray(old_model(rows, training=False)),
        # Weights 1 to 6; the replicas have added 1 and 2.
        "module": rows @ np.arange(1.0, 7.0, dtype="float32").reshape(-1, 1) + 3.0,
    }


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> tuple[Path, dict[str, dict[str, np.ndarray]]]:
    """The directory of all saved models, run by one process, and the expected outputs."""
    root = tmp_path_factory.mktemp("export")
    rows, _ = models.examples(ROWS)
    np.save(root / "rows.npy", rows)
    expected = {kind: _save_all(kind, root, rows) for kind in KINDS}
    # -I: neither this directory nor PYTHONPATH lets it find tfdist.
    server = subprocess.run(
        [sys.executable, "-I", "-c", SERVER, str(root)], capture_output=True, text=True, timeout=50
    )
    assert server.returncode == 0, server.stderr[-3000:]
    return root, expected


@pytest.mark.timeout(120)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_process_without_tfdist_answers_equally(served, kind, form):
    root, expected = served
    answer = np.load(root / f"{kind}-{form}" / "answer.npy")
    assert len(answer) == ROWS
    assert difference([answer], [expected[kind][form]]) <= EXACT


def _operations(directory: Path) -> set[str]:
    """Returns the types of operations in a SavedModel, including its functions."""
    saved = SavedModel.FromString((directory / "saved_model.pb").read_bytes())
    graphs = [graph.graph_def for graph in saved.meta_graphs]
    nodes = [node for graph in graphs for node in graph.node]
    functions = [function for graph in graphs for function in graph.library.function]
    return {node.op for node in [*nodes, *(n for f in functions for n in f.node_def)]}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("form", [form for form in FORMS if form != "keras_file"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_model_holds_no_operation_of_ours_and_each_variable_once(served, kind, form):
    root, _ = served
    directory = root / f"{kind}-{form}"
    operations = _operations(directory)
    assert "MatMul" in operations
    assert not [name for name in operations if name.startswith("Tfdist")]
    names = [name for name, _ in tf.train.list_variables(str(directory / "variables/variables"))]
    assert not [name for name in names if "replica" in name]


def _sum_over_replicas(strategy: tf.distribute.Strategy):
    with strategy.scope():
        weight = tf.Variable([[1.0, 2.0]])

    @tf.function(input_signature=[tf.TensorSpec([None, 1])])
    def function(rows):
        return strategy.reduce("SUM", strategy.run(lambda: rows @ weight), axis=None)

    module = tf.Module()
    module.weight = weight
    np.testing.assert_array_equal(function(tf.ones([1, 1])), [[2.0, 4.0]])
    return module, function


def test_a_traced_function_that_reduces_is_not_saved(tmp_path, strategy):
    module, function = _sum_over_replicas(strategy)
    with pytest.raises(ValueError, match="Unable to save function"):
        tf.saved_model.save(module, str(tmp_path), signatures=function.get_concrete_function())


def test_a_function_that_reduces_is_not_saved(tmp_path, strategy):
    module, module.function = _sum_over_replicas(strategy)
    with pytest.raises(ValueError, match="save"):
        tf.saved_model.save(module, str(tmp_path))
