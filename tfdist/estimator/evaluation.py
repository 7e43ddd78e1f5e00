"""Evaluating an `Estimator`: once, or each checkpoint that a job writes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from tfdist.strategies import ParameterServerStrategy


def evaluate(estimator: Any, evaluate_distributed: Callable, hooks: Sequence[Any]) -> Any:
    """Evaluates a checkpoint on this worker.

    With parameter servers that is this worker's own doing: the checkpoint's values must not reach
    the servers.
    """
    mine, strategy = estimator, estimator.config.eval_distribute
    if isinstance(strategy, ParameterServerStrategy):
        mine, strategy = copy.copy(estimator), None
        mine._eval_distribution = None
    return evaluate_distributed(mine, strategy, hooks)


def evaluate_checkpoints(estimator: Any, train_spec: Any, eval_spec: Any, executor: type) -> None:
    """Evaluates each new checkpoint until the training has ended."""
    executor(estimator, train_spec, eval_spec)._start_continuous_evaluation()
