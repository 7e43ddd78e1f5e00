"""Strategies that Estimators do not train with."""

from __future__ import annotations

import pytest

import tfdist
from tfdist import estimator


@pytest.mark.parametrize("name", ["train_distribute", "eval_distribute"])
def test_local_updates(name):
    with pytest.raises(ValueError, match=f"RunConfig: expected {name} to be a strategy that tra"):
        estimator.RunConfig(**{name: tfdist.LocalUpdateStrategy(2)})
