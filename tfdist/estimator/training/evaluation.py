"""Evaluating an `Estimator`: once, or each checkpoint that a job writes."""

from __future__ import annotations

import copy
import functools
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfdist.control.waiting import Wait
from tfdist.estimator.training.all_reduce import AllReduceWorker, WarmStartHook
from tfdist.estimator.training.model_dir import end_of_training
from tfdist.estimator.training.sessions import brief_failures
from tfdist.strategies import MultiWorkerMirroredStrategy, ParameterServerStrategy

if TYPE_CHECKING:
    import numpy as np
    from tensorflow_estimator.python.estimator.api._v2.estimator import (
        Estimator,
        EvalSpec,
        TrainSpec,
        WarmStartSettings,
    )

_PAUSE = 1.0


def evaluate(
    estimator: Estimator,
    evaluate_distributed: Callable,
    hooks: Sequence[tf.compat.v1.train.SessionRunHook],
) -> dict[str, np.ndarray]:
    """Evaluates a checkpoint on this worker.

    With parameter servers this worker evaluates alone: the checkpoint's values must not reach the
    servers. With all-reduce all workers evaluate the chief's checkpoint, and the chief writes the
    summary.
    """
    with brief_failures():
        return _evaluate(estimator, evaluate_distributed, hooks)


def _evaluate(
    estimator: Estimator,
    evaluate_distributed: Callable,
    hooks: Sequence[tf.compat.v1.train.SessionRunHook],
) -> dict[str, np.ndarray]:
    mine, strategy = copy.copy(estimator), estimator.config.eval_distribute
    if isinstance(strategy, ParameterServerStrategy):
        mine._eval_distribution = None
        return evaluate_distributed(mine, None, hooks)
    if not isinstance(strategy, MultiWorkerMirroredStrategy):
        return evaluate_distributed(mine, strategy, hooks)
    worker = AllReduceWorker(strategy, estimator.model_dir)
    mine._warm_start_settings = None
    mine._actual_eval = functools.partial(
        _evaluate_the_chiefs,
        functools.partial(type(mine)._actual_eval, mine),
        worker,
        estimator._warm_start_settings,
    )
    if strategy.is_chief:
        return evaluate_distributed(mine, strategy, hooks)
    with tempfile.TemporaryDirectory(prefix="tfdist-") as directory:
        mine.eval_dir = lambda name=None: directory
        try:
            return evaluate_distributed(mine, strategy, hooks)
        finally:
            with tf.Graph().as_default():  # else the cache does not find the writer
                tf.compat.v1.summary.FileWriterCache.get(directory).close()


def _evaluate_the_chiefs(
    evaluate_it: Callable,
    worker: AllReduceWorker,
    warm_start: WarmStartSettings | None,
    *args: object,
    **kwargs: Any,
) -> tuple[dict[str, np.ndarray], str]:
    checkpoint = kwargs.pop("checkpoint_path", None) or worker.chiefs_checkpoint()
    if checkpoint is None:
        # Before the user's hooks, which may read the variables.
        hooks = [WarmStartHook(worker, warm_start), *(kwargs.pop("hooks", None) or ())]
        kwargs["hooks"] = hooks
    return evaluate_it(*args, checkpoint_path=checkpoint, **kwargs)


def evaluate_checkpoints(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec, executor: Any
) -> None:
    """Evaluates and exports each new checkpoint, until the training has ended.

    The end is known from a checkpoint of the last step, or from the chief's note.

    Args:
      estimator: the user's.
      train_spec: has the last step, if there is one.
      eval_spec: the data of the evaluation, and its times.
      executor: the package's class that evaluates and exports.
    """
    # The note of an earlier run of the job, which ended and was started again.
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
            # The last checkpoint exists, and its export is the final one.
            evaluator._max_training_steps = last_step
            evaluator._previous_ckpt_path = None
        evaluator.evaluate_and_export()
        if last_step is not None:
            return
        _wait(eval_spec.throttle_secs - (time.monotonic() - start), ended)


def _wait(seconds: float, ended: Callable[[], int | None]) -> None:
    """Waits for a number of seconds, or until the training has ended."""
    wait = Wait(seconds, pause=_PAUSE)
    while not wait.is_over and ended() is None:
        wait.pause()
