"""The training of an `Estimator` on one worker: its hooks, and the loop."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfdist.estimator.training.all_reduce import AllReduceWorker
from tfdist.estimator.training.chief_hooks import RecordedSaves, is_saver
from tfdist.estimator.training.model_dir import check_writable, note_end_of_training
from tfdist.estimator.training.parameter_servers import ParameterServerWorker
from tfdist.estimator.training.preemption import end_if_preempted, until_notice
from tfdist.estimator.training.sessions import brief_failures
from tfdist.estimator.training.step_counts import StepCounts

# A session that fails when a worker has died, instead of retrying forever.
from tfdist.internals.tensorflow import _MonitoredSession
from tfdist.job import process
from tfdist.ops.trace import events
from tfdist.strategies import ParameterServerStrategy

if TYPE_CHECKING:
    from tensorflow_estimator.python.estimator.api._v2.estimator import (
        Estimator,
        EstimatorSpec,
        TrainSpec,
    )

v1 = tf.compat.v1


def train_to_the_end(estimator: Estimator, train_spec: TrainSpec) -> None:
    """Trains by `train_spec`, and then notes the end for the evaluator."""
    is_chief = estimator.config.is_chief
    estimator.train(
        input_fn=train_spec.input_fn,
        max_steps=train_spec.max_steps,
        hooks=list(train_spec.hooks),
        saving_listeners=train_spec.saving_listeners if is_chief else None,
    )
    if is_chief:
        note_end_of_training(estimator.model_dir)


def train(
    estimator: Estimator,
    train_distributed: Callable,
    hooks: Sequence[tf.compat.v1.train.SessionRunHook],
) -> None:
    """Trains an `Estimator` with its strategy, as one of the job's workers.

    Args:
      estimator: the user's.
      train_distributed: given an `Estimator`, a strategy and hooks, builds the graph and calls the
        `Estimator`'s `_train_with_estimator_spec`.
      hooks: for this worker.
    """
    config = estimator.config
    strategy = config.train_distribute
    if config.is_chief:
        check_writable(estimator.model_dir, f"{config.task_type} {config.task_id}")
    kind = (
        ParameterServerWorker if isinstance(strategy, ParameterServerStrategy) else AllReduceWorker
    )
    worker = kind(strategy, estimator.model_dir)
    # A copy, which uses the loop below; the user's Estimator stays unchanged.
    mine = copy.copy(estimator)
    reader = copy.copy(estimator)
    # Another training by the same Estimator begins its input again, however this one ends.
    goes_on = not getattr(estimator, "tfdist_has_trained", False)
    estimator.tfdist_has_trained = True
    reader._call_input_fn = functools.partial(worker.read_input, estimator._call_input_fn, goes_on)
    mine._get_iterator_from_input_fn = functools.partial(
        worker.iterator, reader._get_iterator_from_input_fn
    )
    call_model_fn = estimator._call_model_fn
    if process.current.counts_steps:
        counts = StepCounts()
        call_model_fn = functools.partial(counts.call_model_fn, call_model_fn)
        hooks = [*hooks, counts]
    mine._call_model_fn = functools.partial(worker.call_model_fn, call_model_fn)
    mine._train_with_estimator_spec = functools.partial(_prepare, mine, worker)
    mine._train_with_estimator_spec_distributed = functools.partial(_run, mine, worker)
    with until_notice(worker.training), brief_failures(), worker:
        estimator.tfdist_last_loss = train_distributed(mine, strategy, hooks)


class _Distributed:
    """A strategy with the class name that tells the package that every worker has a session.

    With this name and a cluster the package calls `_train_with_estimator_spec_distributed`. It uses
    neither for anything else.
    """


_Distributed.__name__ = "MultiWorkerMirroredStrategy"


def _prepare(
    mine: Estimator, worker: AllReduceWorker | ParameterServerWorker, *arguments: Any
) -> tf.Tensor | None:
    """Runs the package's preparation of a graph, which then calls the loop below."""
    worker.warm_start(mine._warm_start_settings)
    mine._warm_start_settings = None
    mine._train_distribution = _Distributed()
    if not mine._config.cluster_spec:
        mine._config = copy.copy(mine._config)
        mine._config._cluster_spec = tf.train.ClusterSpec({"worker": ["localhost:0"]})
    return type(mine)._train_with_estimator_spec(mine, *arguments)


def _run(
    mine: Estimator,
    worker: AllReduceWorker | ParameterServerWorker,
    spec: EstimatorSpec,
    hooks: Sequence[tf.compat.v1.train.SessionRunHook],
    listeners: Sequence[tf.compat.v1.train.CheckpointSaverListener] | None,
) -> tf.Tensor | None:
    config = mine._config
    saves = config.save_checkpoints_secs or config.save_checkpoints_steps
    saves = saves or any(is_saver(hook) for hook in [*hooks, *spec.training_chief_hooks])
    hooks = worker.hooks(config, spec, list(hooks))
    if config.is_chief:
        _add_listeners(hooks, listeners)
    creator = worker.session_creator(spec.scaffold, config.session_config)
    loss = None
    with _MonitoredSession(creator, hooks, should_recover=False) as session:
        while not session.should_stop():
            with events.span("step"):
                _, loss = session.run([spec.train_op, spec.loss])
    end_if_preempted(worker.training, hooks, mine.model_dir if saves else None)
    if loss is None:
        v1.logging.warning("Training made no step: the input may be empty.")
    return loss


def _add_listeners(
    hooks: Sequence[tf.compat.v1.train.SessionRunHook],
    listeners: Sequence[tf.compat.v1.train.CheckpointSaverListener] | None,
) -> None:
    savers = [h for h in hooks if is_saver(h)]
    if listeners and not savers:
        raise ValueError(
            "saving_listeners: expected checkpoints to be saved, received a RunConfig whose "
            "save_checkpoints_steps and save_checkpoints_secs are None"
        )
    for saver in savers:
        if not any(isinstance(listener, RecordedSaves) for listener in saver._listeners):
            saver._listeners.append(RecordedSaves())
    for listener in listeners or ():
        if listener not in savers[0]._listeners:
            savers[0]._listeners.append(listener)
