"""Strategies that Estimators do not train with."""

from __future__ import annotations

import pytest

import tfdist
from support.processes.ranks import on_ranks
from tfdist import estimator


@on_ranks(1)
def test_local_updates(ctx):
    strategy = tfdist.LocalUpdateStrategy(2)
    for name in ("train_distribute", "eval_distribute"):
        with pytest.raises(ValueError, match=f"RunConfig: expected {name} to be a strategy that"):
            estimator.RunConfig(**{name: strategy})
