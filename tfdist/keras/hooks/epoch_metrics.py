"""`fit` with parameter servers: an epoch's metrics are those of all workers, and a stop stops all.

Each worker of `ParameterServerStrategy` accumulates metrics of its own rows. At the end of an epoch
the workers combine them, as each metric's variable declares for replicas: sums are added. So
`EarlyStopping`, `ReduceLROnPlateau` and `ModelCheckpoint` decide by the job's numbers, on every
worker alike. After the callbacks of an epoch the workers synchronize once more: if one of them
wants to stop, all do. After the callbacks of `fit` they synchronize a last time.

Validation data is not shared (see `server_training.share_training_data_only`), so its metrics are
the mean of the workers' evaluations. Metrics that are logged after a batch are the worker's own.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import threading
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

from tfdist.job import process
from tfdist.keras.callback import Callback, with_callback
from tfdist.keras.registry import hooks
from tfdist.keras.workers import is_on_servers, trains_on_servers
from tfdist.ps.epochs.metric_states import State, StateError
from tfdist.ps.epochs.rounds import END, FIT_END, TRAINING, VALIDATION, Answer, Key
from tfdist.ps.variable_scopes import Role, made_as

_log = logging.getLogger("tfdist")


@hooks(keras.metrics.Metric, "add_variable")
def keep_local(original, self, *args, **kwargs):
    """The state of metrics stays with the worker, also where replicas would read its mean."""
    with made_as(Role.UNSHARED):
        return original(self, *args, **kwargs)


class _Current(threading.local):
    """The outermost `fit` of this thread, if other workers take part."""

    epochs: _Epochs | None = None

    def of(self, model: Any) -> _Epochs | None:
        return self.epochs if self.epochs is not None and self.epochs.model is model else None


_current = _Current()


@hooks(TensorFlowTrainer, "fit")
def fit_together(original, self, *args, **kwargs):
    """The epochs of `fit` end on all workers of parameter servers together."""
    member = process.current.ps_worker
    if (
        member is None
        or not member.has_others
        or _current.epochs is not None
        or not trains_on_servers(self.distribute_strategy)
    ):
        return original(self, *args, **kwargs)
    epochs = _Epochs(self, member)
    position = list(inspect.signature(original).parameters).index("callbacks") - 1  # without self
    given = args[position] if len(args) > position else kwargs.get("callbacks")
    _current.epochs = epochs
    try:
        with with_callback(given, _EndOfEpoch(epochs)) as callbacks:
            if len(args) > position:
                args = (*args[:position], callbacks, *args[position + 1 :])
            else:
                kwargs["callbacks"] = callbacks
            history = original(self, *args, **kwargs)
        epochs.end_fit()
        return history
    finally:
        _current.epochs = None


@hooks(TensorFlowTrainer, "evaluate")
def evaluate_in_fit(original, self, *args, **kwargs):
    """`fit` logs the mean of the workers' evaluations of validation data."""
    epochs = _current.of(self)
    if epochs is None:
        return original(self, *args, **kwargs)
    # A callback that evaluates does so on its own.
    is_of_fit = bool(kwargs.get("_use_cached_eval_dataset"))
    with epochs.in_phase(VALIDATION if is_of_fit else None):
        return original(self, *args, **kwargs)


@hooks(TensorFlowTrainer, "_get_metrics_result_or_logs")
def result_of_all(original, self, logs):
    """`fit` logs the metrics of all workers at the end of an epoch."""
    own = original(self, logs)
    epochs = _current.of(self)
    if epochs is None or not epochs.combine(own, logs):
        return own
    if own is logs and logs:
        return epochs.step_logs
    # A worker that has made no step has no logs, but the others' metrics.
    return original(self, logs) if logs else self.get_metrics_result()


class _EndOfEpoch(Callback):
    """Ends an epoch; runs after the user's callbacks."""

    def __init__(self, epochs: _Epochs) -> None:
        super().__init__()
        self._epochs = epochs

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Notes the number of the epoch."""
        self._epochs.epoch = epoch

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Stops if any worker stops."""
        self._epochs.end()


class _Epochs:
    """The epochs of one `fit` of one worker.

    Args:
      model: the model that is trained.
      member: this worker.

    Attributes:
      epoch: the number of the current epoch, from 0.
      step_logs: the last logs of a model whose steps log more than its metrics; the mean of all
        workers'.
    """

    def __init__(self, model: Any, member: Any) -> None:
        self.model = model
        self.epoch = 0
        self.step_logs: dict[str, Any] = {}
        self._member = member
        member.fits += 1
        self._fit = member.fits
        self._phase: int | None = TRAINING
        self._missed: set[int] = set()
        self._has_ended = False  # an epoch, at least

    @contextlib.contextmanager
    def in_phase(self, phase: int | None) -> Iterator[None]:
        """Says that metrics are those of `phase`; `None`: of this worker alone."""
        before, self._phase = self._phase, phase
        try:
            yield
        finally:
            self._phase = before

    def combine(self, own: Any, logs: Any) -> bool:
        """Gives the model's metrics the states of all workers.

        Args:
          own: this worker's results; `logs` if its steps log something else than its metrics.
          logs: the logs of its last step; empty if it has made none.

        Returns:
          Whether the metrics are now those of all workers.
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
        if answer is None or answer.state is None:
            return False
        merged = answer.state.arrays()
        for variable, value in zip(variables, merged, strict=False):
            shape = tuple(variable.shape)
            variable.assign(value.reshape(shape).astype(np.asarray(variable).dtype))
        if steps:
            means = [float(value[0]) for value in merged[len(variables) :]]
            self.step_logs = {**logs, **dict(zip(steps, means, strict=True))}
        return True

    def end(self) -> None:
        """Ends the epoch together with the other workers."""
        # This worker's updates reach the servers before another worker saves or restores.
        self._member.flush()
        self._has_ended = True
        self._meet(END, State(), bool(self.model.stop_training))

    def end_fit(self) -> None:
        """Ends `fit` together with the other workers.

        At its end the chief's callbacks may change variables, as `EarlyStopping` does that restores
        the best weights. A worker that reads variables after `fit` reads the changed ones.
        """
        if self._has_ended:
            self._meet(FIT_END, State())

    def _meet(self, phase: int, state: State, stop: bool = False) -> Answer | None:
        answer = self._member.epochs.join_round(Key(self._fit, self.epoch, phase), state, stop)
        if answer is None:
            return None
        if answer.stop:
            self.model.stop_training = True
        for rank, why in answer.missing.items():
            if rank not in self._missed:
                self._missed.add(rank)
                name = self._member.cluster.describe_rank(rank)
                what = "fit ends" if phase == FIT_END else "its metrics are"
                self._tell(f"{what} without {name}, which {why}")
        if answer.state is None:
            if phase != FIT_END:
                self._tell("its metrics are this worker's own: the others are many epochs further")
            return None
        return answer

    def _tell(self, what: str) -> None:
        name = self._member.cluster.task_name
        _log.warning("%s: epoch %d of fit: %s", name, self.epoch + 1, what)


def _variables(model: Any) -> list[Any]:
    """The variables of a model's metrics, each once, without those that the servers hold."""
    found = {id(v): v for metric in model.metrics for v in metric.variables}
    return [v for v in found.values() if not is_on_servers(getattr(v, "_value", v))]


def _numbers(logs: Any) -> dict[str, np.ndarray]:
    """The numbers among the logs of a step, by name, sorted by name."""
    numbers = {}
    for name in sorted(logs) if isinstance(logs, dict) else ():
        with contextlib.suppress(TypeError, ValueError):
            numbers[name] = np.asarray(float(logs[name]))
    return numbers


def _aggregation(variable: Any) -> str:
    """How replicas' values are combined: Keras 3 has a name, TensorFlow an enumeration."""
    declared = getattr(variable, "aggregation", None)
    name = str(getattr(declared, "name", declared)).lower()
    # The first replica's value, or no declaration at all, means the first worker's.
    return name if name in ("sum", "mean") else "first"
