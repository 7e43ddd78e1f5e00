"""Estimator where tf.keras is tf_keras: its tests once more, in a process that says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.launching import PACKAGE

TESTS = Path(__file__).parents[2]
# All that does not depend on Keras 3; of the common part of canned estimators, one of each kind.
AGAIN = {
    "single/estimator/test_estimator_api.py": "names or every_name",
    "single/estimator/test_estimator_canned.py": (
        "BaselineClassifier or LinearRegressor or DNNLinearCombinedEstimator or several_heads or "
        "own or optimizers or warm_start or tensorflow_1"
    ),
    "single/estimator/test_estimator_export.py": "without_keras",
    "single/estimator/test_estimator_model_fns.py": "test",
    "devices/test_estimator_strategies.py": (
        "own-adam-mirrored or canned-sgd-central or head-sgd-one or mirrored and not equals"
    ),
}


@pytest.mark.long(usual="single/estimator/test_estimator_api.py", covered_by="the other cases")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("module", AGAIN)
def test_with_tf_keras(module):
    path = os.pathsep.join(filter(None, [PACKAGE, os.environ.get("PYTHONPATH")]))
    environment = {"PYTHONPATH": path, "TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", TESTS / module]
        + ["-k", AGAIN[module]],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=290,
    )
    assert finished.returncode == 0, finished.stdout[-6000:] + finished.stderr[-2000:]
