"""train_and_evaluate in one process, to the end and on from there, with each kind of checkpoint."""

from __future__ import annotations

import pytest

from devices.replicas import make_strategy
from support.estimator import estimators
from support.estimator.estimator_data import ignore_warnings
from tfdist import estimator

pytestmark = ignore_warnings
FIRST, LAST = 3, 5


@pytest.mark.long(
    usual="mirrored-objects", covered_by="the other cases, devices/test_estimator_strategies.py"
)
@pytest.mark.parametrize("model", ["keras", "objects"])
@pytest.mark.parametrize("kind", ["mirrored", "central", "none"])
def test_goes_on(kind, model, tmp_path):
    strategy = None if kind == "none" else make_strategy(kind, 2)
    for begin, end in ((0, FIRST), (FIRST, LAST)):
        config = estimators.config(tmp_path, strategy)
        steps = estimators.Steps()
        metrics, _ = estimator.train_and_evaluate(
            estimators.MODELS[model](config),
            estimator.TrainSpec(estimators.input_fn(), end, hooks=[steps]),
            estimator.EvalSpec(estimators.input_fn(batches=2), start_delay_secs=0),
        )
        assert steps.count == end - begin
        assert metrics["global_step"] == estimators.checkpoints(tmp_path)[-1] == end
        assert metrics["loss"] > 0
