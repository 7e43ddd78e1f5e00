"""The names of `tf.estimator`, and what importing them takes."""

from __future__ import annotations

import importlib.metadata

import pytest
import tensorflow as tf

from support.estimator.estimator_data import ignore_warnings, run_python
from tfdist import estimator

pytestmark = ignore_warnings

# The names that TensorFlow 2.15 had in tf.estimator.
NAMES = """
BaselineClassifier BaselineEstimator BaselineRegressor BestExporter BinaryClassHead
CheckpointSaverHook CheckpointSaverListener DNNClassifier DNNEstimator DNNLinearCombinedClassifier
DNNLinearCombinedEstimator DNNLinearCombinedRegressor DNNRegressor Estimator EstimatorSpec EvalSpec
Exporter FeedFnHook FinalExporter FinalOpsHook GlobalStepWaiterHook Head LatestExporter
LinearClassifier LinearEstimator LinearRegressor LoggingTensorHook LogisticRegressionHead ModeKeys
MultiClassHead MultiHead MultiLabelHead NanLossDuringTrainingError NanTensorHook
PoissonRegressionHead ProfilerHook RegressionHead RunConfig SecondOrStepTimer SessionRunArgs
SessionRunContext SessionRunHook SessionRunValues StepCounterHook StopAtStepHook SummarySaverHook
TrainSpec VocabInfo WarmStartSettings add_metrics classifier_parse_example_spec
regressor_parse_example_spec train_and_evaluate
""".split()
EXPERIMENTAL = """
InMemoryEvaluatorHook LinearSDCA RNNClassifier RNNEstimator build_raw_supervised_input_receiver_fn
call_logit_fn make_early_stopping_hook make_stop_at_checkpoint_step_hook stop_if_higher_hook
stop_if_lower_hook stop_if_no_decrease_hook stop_if_no_increase_hook
""".split()
EXPORT = """
ClassificationOutput EvalOutput ExportOutput PredictOutput RegressionOutput ServingInputReceiver
TensorServingInputReceiver build_parsing_serving_input_receiver_fn
build_raw_serving_input_receiver_fn
""".split()
# Given back to TensorFlow, for scripts that use them beside tf.estimator.
GIVEN_BACK = """
estimator.Estimator compat.v1.estimator.DNNClassifier compat.v1.estimator.experimental.KMeans
compat.v1.estimator.inputs.numpy_input_fn compat.v2.estimator.RunConfig compat.v1.layers.dense
compat.v1.nn.rnn_cell.LSTMCell keras.estimator.model_to_estimator keras.layers.DenseFeatures
keras.experimental.SequenceFeatures keras.optimizers.legacy.Adam optimizers.legacy.Ftrl
""".split()


def test_every_name_of_tensorflow_2_15_is_there():
    assert [name for name in NAMES if not hasattr(estimator, name)] == []
    assert [name for name in EXPERIMENTAL if not hasattr(estimator.experimental, name)] == []
    assert [name for name in EXPORT if not hasattr(estimator.export, name)] == []
    assert callable(estimator.model_to_estimator)


@pytest.mark.parametrize("name", GIVEN_BACK)
def test_tensorflow_has_its_names_back(name):
    found = tf
    for part in name.split("."):
        found = getattr(found, part)
    assert isinstance(found, type) or callable(found)


def test_an_estimator_is_the_same_by_either_name():
    assert tf.estimator.Estimator is estimator.Estimator
    assert issubclass(estimator.DNNClassifier, tf.compat.v1.estimator.Estimator)


@pytest.mark.long("1", covered_by="the other cases")
@pytest.mark.parametrize("legacy", ["0", "1"])
def test_importing_tfdist_imports_nothing_of_it(legacy):
    program = (
        "import sys, tfdist; tfdist.Cluster, tfdist.MirroredStrategy;"
        "wanted = ('tensorflow_estimator', 'tfdist.estimator');"
        "print([m for m in sys.modules if m.startswith(wanted)])"
    )
    assert run_python(program, TF_USE_LEGACY_KERAS=legacy).strip() == "[]"


@pytest.mark.long("tf_keras", covered_by="the other cases")
@pytest.mark.parametrize("absent", ["tensorflow_estimator", "tf_keras"])
def test_without_the_extra_the_error_says_what_to_type(absent):
    program = """
import sys

sys.modules[sys.argv[1]] = None
try:
    from tfdist import estimator
except ImportError as error:
    print(error)
"""
    expected = (
        f"tfdist.estimator needs {absent}: pip install tensorflow-estimator==2.15.0 tf_keras "
        f"tensorflow=={importlib.metadata.version('tensorflow')}"
    )
    assert run_python(program, absent).strip() == expected


def test_with_tf_keras_nothing_of_keras_3_is_imported():
    program = (
        "import sys\nfrom tfdist import estimator\n"
        "print([m for m in sys.modules if m.partition('.')[0] == 'keras'])"
    )
    assert run_python(program, TF_USE_LEGACY_KERAS="1").strip() == "[]"
