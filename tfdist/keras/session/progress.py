"""`fit` tells of itself: its beginning, its logs for the dashboard, and stragglers at its end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from tfdist._types import Logs
from tfdist.job import process
from tfdist.keras.session.fit_estimate import FitEstimate
from tfdist.keras.session.participant import Participant
from tfdist.keras.session.session import FitSession, Session, is_in_fit_of
from tfdist.keras.workers import is_ours
from tfdist.observe.metrics import fit_report
from tfdist.observe.metrics.fit_progress import FitProgress
from tfdist.observe.pauses import pauses


class Progress(Participant[FitSession]):
    """Notes the logs of the outermost `fit`, if metrics are served, and reports stragglers.

    Until its first step has ended, `fit` begins: it traces functions and fills caches, for which no
    worker is called late.
    """

    def __init__(self, session: FitSession) -> None:
        super().__init__(session)
        self._beginning = contextlib.ExitStack()
        self._estimate = FitEstimate(session)

    @classmethod
    def of(cls, session: Session) -> Progress | None:
        """Returns the participant, if it takes part."""
        if not isinstance(session, FitSession) or is_in_fit_of(cls):
            return None
        return cls(session) if is_ours(session.strategy) else None

    def begin_fit(self) -> None:
        """Begins with tracing."""
        self._beginning.enter_context(pauses.noted())
        self.session.call_at_end(self._beginning.close)

    def begin_epoch(self) -> None:
        """Notes the epoch."""
        if process.current.serves_metrics:
            self._estimate.begin()
            self._note_state()

    def after_step(self, logs: Logs | None) -> None:
        """Notes the logs of a step."""
        self._beginning.close()
        if process.current.serves_metrics:
            fit_report.current.note_step(logs, self._state)

    def results(self, logs: Logs, make: Callable[[Logs], Logs], *, of_validation: bool) -> Logs:
        """Notes the logs of an epoch, or of its validation."""
        made = make(logs)
        if process.current.serves_metrics:
            fit_report.current.note_results(made, "val_" if of_validation else "")
        return made

    def end_epoch(self) -> None:
        """Notes the end of an epoch."""
        self._note_state()

    def end_fit(self) -> None:
        """Notes the end, and logs which workers were late."""
        self._beginning.close()
        self._note_state(has_ended=True)
        process.current.report_stragglers()

    def _note_state(self, has_ended: bool = False) -> None:
        if process.current.serves_metrics:
            fit_report.current.state = self._state(has_ended)

    def _state(self, has_ended: bool = False) -> FitProgress:
        fit, done = self.session, self._estimate.done
        # Users also give numbers of NumPy, which JSON does not have.
        epochs = int(fit.arguments["epochs"])
        return FitProgress(
            # After the last batch of an epoch the session counts the next one.
            epoch=min(int(fit.epoch) + (0 if has_ended else 1), epochs),
            epochs=epochs,
            batch=int(fit.batch),
            batches=self._estimate.batches,
            done=float(done),
            remaining=0.0 if has_ended else self._estimate.remaining(done),
            has_ended=has_ended,
        )
