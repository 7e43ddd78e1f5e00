"""`fit` tells Kubeflow Trainer how far it is, in the status of its TrainJob."""

from __future__ import annotations

import functools
from collections.abc import Callable

from tfdist._types import Logs
from tfdist.config.trainjob import StatusServer
from tfdist.keras.session.fit_estimate import FitEstimate
from tfdist.keras.session.participant import Participant
from tfdist.keras.session.session import FitSession, Session, is_in_fit_of
from tfdist.keras.workers import is_ours, rank_of
from tfdist.observe.trainjob import Reporter, Status


@functools.cache
def reporter() -> Reporter | None:
    """Returns this process's reporter; None outside of a TrainJob that takes a status."""
    server = StatusServer.from_environment()
    return None if server is None else Reporter(server)


class TrainJobProgress(Participant[FitSession]):
    """Reports the progress of the outermost `fit`, from rank 0."""

    def __init__(self, session: FitSession, reporter: Reporter) -> None:
        super().__init__(session)
        self._reporter = reporter
        self._metrics: dict[str, float] = {}
        self._estimate = FitEstimate(session)

    @classmethod
    def of(cls, session: Session) -> TrainJobProgress | None:
        """Returns the participant, if it takes part."""
        if not isinstance(session, FitSession) or is_in_fit_of(cls):
            return None
        found = reporter() if is_ours(session.strategy) else None
        return None if found is None else cls(session, found)

    def begin_epoch(self) -> None:
        """Notes where and when the training begins, from which the remaining time follows."""
        if self._estimate.begin():
            self._report(self._estimate.done)

    def after_step(self, logs: Logs | None) -> None:
        """Reports the metrics of a step, if the reporter would post them at once."""
        # Reading a value may wait for the device.
        if self._leads() and self._reporter.is_due():
            self._metrics |= _numbers(logs)
            self._report(self._estimate.done)

    def results(self, logs: Logs, make: Callable[[Logs], Logs], *, of_validation: bool) -> Logs:
        """Notes the metrics of an epoch, or of its validation."""
        made = make(logs)
        self._metrics |= _numbers(made, "val_" if of_validation else "")
        return made

    def end_epoch(self) -> None:
        """Reports the metrics of an epoch."""
        self._report(self._estimate.done)

    def end_fit(self) -> None:
        """Reports the end, which may come before the last epoch."""
        self._report(1.0)

    def _leads(self) -> bool:
        # Of an elastic job another worker may be rank 0 after each step.
        return rank_of(self.session.model) == 0

    def _report(self, done: float) -> None:
        if not self._leads():
            return
        epochs = self.session.arguments["epochs"]
        counters = {
            "currentEpoch": min(self.session.epoch + 1, epochs),
            "totalEpochs": epochs,
        }
        self._reporter.report(
            Status(done, self._estimate.remaining(done), self._metrics | counters)
        )


def _numbers(logs: Logs | None, prefix: str = "") -> dict[str, float]:
    found = {}
    for name, value in (logs or {}).items():
        try:
            found[prefix + name.removeprefix(prefix)] = float(value)
        except (TypeError, ValueError):
            continue  # a metric of the user's may be no number
    return found
