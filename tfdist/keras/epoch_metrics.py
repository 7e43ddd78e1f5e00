"""`fit` with parameter servers: the metrics of an epoch are all workers', and a stop stops all.

Workers of `ParameterServerStrategy` count what they see in metrics of their own. At the end of an
epoch they put these together, by what each metric's variable declares for replicas: sums are added.
So `EarlyStopping`, `ReduceLROnPlateau` and `ModelCheckpoint` decide by the job's numbers, on every
worker alike. After the callbacks of an epoch the workers meet once more: if one of them wants to
stop, all do.

Validation data is not shared out (servers.share_training_data_only), so its metrics are the mean of
the workers' evaluations. Metrics that are logged after a batch are the worker's own.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

from tfdist.horovod.callback import Callback
from tfdist.job import process
from tfdist.keras.workers import trains_on_servers
from tfdist.ps.epochs.metric_states import State, StateError
from tfdist.ps.epochs.rounds import END, TRAINING, VALIDATION, Answer, Key
from tfdist.strategies._variables.roles import of_metric
from tfdist.strategies._variables.server_variable import ServerVariable

_log = logging.getLogger("tfdist")


def log_metrics_of_all_workers() -> None:
    """Not a defect of Keras: it knows of no workers whose metrics are not one strategy's."""
    _keep_local(keras.metrics.Metric, "add_variable")
    _install(TensorFlowTrainer, "_get_metrics_result_or_logs")
    if "tf_keras" in sys.modules:
        import tf_keras

        _keep_local(tf_keras.metrics.Metric, "add_weight")
        _install(tf_keras.Model, "_validate_and_get_metrics_result")


def _keep_local(metric: type, name: str) -> None:
    """Keeps a metric's variables from the servers also where they are read as a mean."""
    original = getattr(metric, name)

    @functools.wraps(original)
    def add(self, *args, **kwargs):
        with of_metric():
            return original(self, *args, **kwargs)

    setattr(metric, name, add)


class _Current(threading.local):
    """The outermost `fit` of this thread, if it has others to meet."""

    epochs: _Epochs | None = None

    def of(self, model: Any) -> _Epochs | None:
        return self.epochs if self.epochs is not None and self.epochs.model is model else None


_current = _Current()


def _install(trainer: type, result: str) -> None:
    """Lets `fit` of a class of models meet the other workers.

    Args:
      trainer: the class.
      result: the method that gives an epoch's metrics, from the logs of its last step.
    """
    fit, evaluate, own_result = trainer.fit, trainer.evaluate, getattr(trainer, result)
    position = list(inspect.signature(fit).parameters).index("callbacks") - 1  # without self

    @functools.wraps(fit)
    def fit_together(self, *args, **kwargs):
        member = process.current.ps_worker
        if (
            member is None
            or not member.has_others
            or _current.epochs is not None
            or not trains_on_servers(self.distribute_strategy)
        ):
            return fit(self, *args, **kwargs)
        epochs = _Epochs(self, member)
        given = args[position] if len(args) > position else kwargs.get("callbacks")
        _current.epochs = epochs
        try:
            with _followed_by(given, _EndOfEpoch(epochs)) as callbacks:
                if len(args) > position:
                    args = (*args[:position], callbacks, *args[position + 1 :])
                else:
                    kwargs["callbacks"] = callbacks
                return fit(self, *args, **kwargs)
        finally:
            _current.epochs = None

    @functools.wraps(evaluate)
    def evaluate_of(self, *args, **kwargs):
        epochs = _current.of(self)
        if epochs is None:
            return evaluate(self, *args, **kwargs)
        # A callback that evaluates does so on its own.
        is_of_fit = bool(kwargs.get("_use_cached_eval_dataset"))
        with epochs.in_phase(VALIDATION if is_of_fit else None):
            return evaluate(self, *args, **kwargs)

    @functools.wraps(own_result)
    def result_of_all(self, logs):
        own = own_result(self, logs)
        epochs = _current.of(self)
        if epochs is None or not epochs.put_together(own, logs):
            return own
        if own is logs and logs:
            return epochs.of_steps
        # A worker that has made no step has no logs, but the others' metrics.
        return own_result(self, logs) if logs else self.get_metrics_result()

    trainer.fit, trainer.evaluate = fit_together, evaluate_of
    setattr(trainer, result, result_of_all)


@contextlib.contextmanager
def _followed_by(given: Any, callback: Callback) -> Iterator[Any]:
    """Gives the user's callbacks and, after them, one of ours, as `fit` takes them."""
    if given is None or isinstance(given, list | tuple):
        yield [*(given or ()), callback]
    elif not hasattr(given, "callbacks"):
        yield [given, callback]
    else:  # a CallbackList, which is the user's
        given.append(callback)
        try:
            yield given
        finally:
            given.callbacks.remove(callback)


class _EndOfEpoch(Callback):
    """Comes after the user's callbacks."""

    def __init__(self, epochs: _Epochs) -> None:
        super().__init__()
        self._epochs = epochs

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Takes in which epoch it is."""
        self._epochs.number = epoch

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Stops if any worker stops."""
        self._epochs.end()


class _Epochs:
    """The epochs of one `fit` of one worker.

    Args:
      model: what is trained.
      member: this worker.

    Attributes:
      number: the epoch's, from 0.
      of_steps: what the model's own steps have logged last, the mean of all workers'.
    """

    def __init__(self, model: Any, member: Any) -> None:
        self.model = model
        self.number = 0
        self.of_steps: dict[str, Any] = {}
        self._member = member
        member.fits += 1
        self._fit = member.fits
        self._phase: int | None = TRAINING
        self._missed: set[int] = set()

    @contextlib.contextmanager
    def in_phase(self, phase: int | None) -> Iterator[None]:
        """Within, metrics are those of `phase`; `None`: of this worker alone."""
        before, self._phase = self._phase, phase
        try:
            yield
        finally:
            self._phase = before

    def put_together(self, own: Any, logs: Any) -> bool:
        """Gives the model's metrics the states of all workers.

        Args:
          own: this worker's results; `logs` where its steps log something else than its metrics.
          logs: of its last step; empty if it has made none.

        Returns:
          Whether they are of all workers now.
        """
        if self._phase is None:
            return False
        variables = _variables(self.model)
        steps = _numbers(logs) if own is logs else {}
        values = [np.asarray(v) for v in variables] + list(steps.values())
        aggregations = [_aggregation(v) for v in variables] + ["mean"] * len(steps)
        if self._phase == VALIDATION:  # all workers see all rows
            aggregations = ["mean" if a == "sum" else a for a in aggregations]
        try:
            state = State.of(values, aggregations)
        except StateError as error:
            self._tell(f"its metrics are this worker's own: {error}")
            return False
        answer = self._meet(self._phase, state)
        if answer is None:
            return False
        merged = answer.state.arrays()
        for variable, value in zip(variables, merged, strict=False):
            shape = tuple(variable.shape)
            variable.assign(value.reshape(shape).astype(np.asarray(variable).dtype))
        if steps:
            means = [float(value[0]) for value in merged[len(variables) :]]
            self.of_steps = {**logs, **dict(zip(steps, means, strict=True))}
        return True

    def end(self) -> None:
        """Ends the epoch together with the others."""
        # What this worker has learnt is on the servers before another one saves or restores.
        self._member.flush()
        self._meet(END, State(), bool(self.model.stop_training))

    def _meet(self, phase: int, state: State, stop: bool = False) -> Answer | None:
        answer = self._member.epochs.join_round(Key(self._fit, self.number, phase), state, stop)
        if answer is None:
            return None
        if answer.stop:
            self.model.stop_training = True
        for rank, why in answer.missing.items():
            if rank not in self._missed:
                self._missed.add(rank)
                name = self._member.cluster.describe_rank(rank)
                self._tell(f"its metrics are without {name}, which {why}")
        if answer.state is None:
            self._tell("its metrics are this worker's own: the others are many epochs further")
            return None
        return answer

    def _tell(self, what: str) -> None:
        name = self._member.cluster.task_name
        _log.warning("%s: epoch %d of fit: %s", name, self.number + 1, what)


def _variables(model: Any) -> list[Any]:
    """The variables of a model's metrics, each once, but for those that the servers hold."""
    found = {id(v): v for metric in model.metrics for v in metric.variables}
    return [v for v in found.values() if not isinstance(getattr(v, "_value", v), ServerVariable)]


def _numbers(logs: Any) -> dict[str, np.ndarray]:
    """What can be averaged of what a step has logged, by name, in the order of names."""
    numbers = {}
    for name in sorted(logs) if isinstance(logs, dict) else ():
        with contextlib.suppress(TypeError, ValueError):
            numbers[name] = np.asarray(float(logs[name]))
    return numbers


def _aggregation(variable: Any) -> str:
    """How replicas' values become one: by name as Keras 3 says it, or TensorFlow's enumeration."""
    declared = getattr(variable, "aggregation", None)
    name = str(getattr(declared, "name", declared)).lower()
    # What is declared to be the first replica's, or nothing at all, is the first worker's.
    return name if name in ("sum", "mean") else "first"
