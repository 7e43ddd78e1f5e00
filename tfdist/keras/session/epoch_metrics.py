"""`fit` with parameter servers: an epoch's metrics cover all workers, and a stop stops all.

Each worker of `ParameterServerStrategy` accumulates metrics of its own rows. At the end of an epoch
the workers combine them, as each metric's variable declares for replicas: sums are added. So
`EarlyStopping`, `ReduceLROnPlateau` and `ModelCheckpoint` decide by the job's numbers, the same on
every worker. After the callbacks of an epoch the workers synchronize once more: if one of them
wants to stop, all do. After the callbacks of `fit` they synchronize a last time.

Validation data is not shared (see `server_data`), so its metrics are
the mean of the workers' evaluations. Metrics that are logged after a batch are the worker's own.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import numpy as np

from tfdist._types import KerasModel, KerasVariable, Logs
from tfdist.job import process
from tfdist.keras.callback import Callback
from tfdist.keras.session.participant import Participant
from tfdist.keras.session.session import FitSession, Session, is_in_fit_of
from tfdist.keras.workers import is_on_servers, trains_on_servers
from tfdist.ps.epochs.metric_states import MetricStates, StateError
from tfdist.ps.epochs.rounds import END, FIT_END, TRAINING, VALIDATION, Key, RoundResult

if TYPE_CHECKING:
    from tfdist.ps.worker import PsWorker

_log = logging.getLogger("tfdist")


class EpochMetrics(Participant[FitSession]):
    """Ends the epochs of the outermost `fit` on all workers of parameter servers together."""

    def __init__(self, session: FitSession, member: PsWorker) -> None:
        super().__init__(session)
        self.model = session.model
        self._member = member
        member.fits += 1
        self._fit = member.fits
        self._missed: set[int] = set()
        self._epoch = 0
        self._has_ended = False  # an epoch, at least

    @classmethod
    def of(cls, session: Session) -> EpochMetrics | None:
        """Returns the participant, if it takes part."""
        member = process.current.ps_worker
        if not isinstance(session, FitSession) or is_in_fit_of(cls):
            return None
        if member is None or not member.has_others or not trains_on_servers(session.strategy):
            return None
        return cls(session, cast("PsWorker", member))  # a LocalPsWorker has no others

    def begin_call(self) -> None:
        """Runs a callback after the user's, which may want to stop."""
        self.session.add_callback(_EndOfEpoch(self))

    def begin_epoch(self) -> None:
        """Notes the number of the epoch, which its callbacks also see at its end."""
        self._epoch = self.session.epoch

    def results(self, logs: Logs, make: Callable[[Logs], Logs], *, of_validation: bool) -> Logs:
        """Logs the metrics of all workers; of a validation, the mean of their evaluations."""
        own = make(logs)
        all_logs = self._combined(own, logs, VALIDATION if of_validation else TRAINING)
        if all_logs is None:
            return own
        if own is logs and logs:
            return all_logs
        # A worker that has made no step has no logs, but the others' metrics.
        return make(logs) if logs else self.model.get_metrics_result()

    def _combined(self, own: Logs, logs: Logs, phase: int) -> Logs | None:
        """Gives the model's metrics the states of all workers.

        Args:
          own: this worker's results; `logs` if its steps log something else than its metrics.
          logs: the logs of its last step; empty if it has made none.
          phase: of the epoch, whose metrics these are.

        Returns:
          The logs, with the mean of all workers' numbers; `None` if the metrics do not cover all
          workers.
        """
        variables = _variables(self.model)
        steps = _numbers(logs) if own is logs else {}
        values = [np.asarray(v) for v in variables] + list(steps.values())
        aggregations = [_aggregation(v) for v in variables] + ["mean"] * len(steps)
        if phase == VALIDATION:  # all workers see all rows
            aggregations = ["mean" if a == "sum" else a for a in aggregations]
        try:
            state = MetricStates.of(values, aggregations)
        except StateError as error:
            self._tell(f"its metrics are this worker's own: {error}")
            return None
        answer = self._meet(phase, state)
        if answer is None or answer.state is None:
            return None
        merged = answer.state.arrays()
        for variable, value in zip(variables, merged, strict=False):
            shape = tuple(variable.shape)
            variable.assign(value.reshape(shape).astype(np.asarray(variable).dtype))
        if steps:
            means = [float(value[0]) for value in merged[len(variables) :]]
            return {**logs, **dict(zip(steps, means, strict=True))}
        return logs

    def meet_after_callbacks(self) -> None:
        """Ends the epoch together with the other workers; stops if any worker stops."""
        # This worker's updates reach the servers before another worker saves or restores.
        self._member.flush()
        self._has_ended = True
        self._meet(END, MetricStates(), bool(self.model.stop_training))

    def end_call(self) -> None:
        """Ends `fit` together with the other workers.

        At its end the chief's callbacks may change variables, as `EarlyStopping` does that restores
        the best weights. A worker that reads variables after `fit` reads the changed ones.
        """
        if self._has_ended:
            self._meet(FIT_END, MetricStates())

    def _meet(self, phase: int, state: MetricStates, stop: bool = False) -> RoundResult | None:
        answer = self._member.epochs.join_round(Key(self._fit, self._epoch, phase), state, stop)
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
        _log.warning("%s: epoch %d of fit: %s", name, self._epoch + 1, what)


class _EndOfEpoch(Callback):
    """Ends an epoch; runs after the user's callbacks."""

    def __init__(self, metrics: EpochMetrics) -> None:
        super().__init__()
        self._metrics = metrics

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Stops if any worker stops."""
        self._metrics.meet_after_callbacks()


def _variables(model: KerasModel) -> list[KerasVariable]:
    """The variables of a model's metrics, each once, without the servers' variables."""
    found = {id(v): v for metric in model.metrics for v in metric.variables}
    return [v for v in found.values() if not is_on_servers(getattr(v, "_value", v))]


def _numbers(logs: Logs) -> dict[str, np.ndarray]:
    """The numbers among the logs of a step, by name, sorted by name."""
    numbers = {}
    for name in sorted(logs) if isinstance(logs, dict) else ():
        with contextlib.suppress(TypeError, ValueError):
            numbers[name] = np.asarray(float(logs[name]))
    return numbers


def _aggregation(variable: KerasVariable) -> str:
    """How replicas' values are combined: Keras 3 has a name, TensorFlow an enumeration."""
    declared = getattr(variable, "aggregation", None)
    name = str(getattr(declared, "name", declared)).lower()
    # The first replica's value, or no declaration at all, means the first worker's.
    return name if name in ("sum", "mean") else "first"
