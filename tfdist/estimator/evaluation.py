"""Evaluating an `Estimator`: once, or each checkpoint that a job writes."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tfdist.estimator.model_dir import end_of_training
from tfdist.strategies import ParameterServerStrategy

_PAUSE = 1.0


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
    """Evaluates and exports each new checkpoint, until the training has ended.

    That it has ended, it knows from a checkpoint of the last step, or from the chief's note.

    Args:
      estimator: the user's.
      train_spec: says which step is the last one, if any is.
      eval_spec: says what is evaluated, and how often.
      executor: the package's class that evaluates and exports.
    """
    # Of a job before this one, which ended and has been started again.
    before = end_of_training(estimator.model_dir)

    def ended() -> int | None:
        end = end_of_training(estimator.model_dir)
        return None if end in (None, before) else end.global_step

    evaluator = executor._Evaluator(estimator, eval_spec, train_spec.max_steps)
    _wait(eval_spec.start_delay_secs, ended)
    while not evaluator.is_final_export_triggered:
        start = time.monotonic()
        last_step = ended()
        if last_step is not None:
            # The last checkpoint is there, and its export is the final one.
            evaluator._max_training_steps = last_step
            evaluator._previous_ckpt_path = None
        evaluator.evaluate_and_export()
        if last_step is not None:
            return
        _wait(eval_spec.throttle_secs - (time.monotonic() - start), ended)


def _wait(seconds: float, ended: Callable[[], int | None]) -> None:
    """Waits for so long, or until the training has ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and ended() is None:
        threading.Event().wait(min(_PAUSE, max(0.0, deadline - time.monotonic())))
