"""`fit` tells of itself: the loss, for the dashboard, and at its end the straggler report."""

from __future__ import annotations

from tfdist._types import Logs
from tfdist.job import process
from tfdist.keras.session.participant import Participant
from tfdist.keras.session.session import FitSession, Session, is_in_fit_of
from tfdist.keras.workers import is_ours
from tfdist.observe.metrics import curve


class Progress(Participant[FitSession]):
    """Notes the loss of each step of the outermost `fit`, and reports stragglers at its end."""

    @classmethod
    def of(cls, session: Session) -> Progress | None:
        """Returns the participant, if it takes part."""
        if not isinstance(session, FitSession) or is_in_fit_of(cls):
            return None
        return cls(session) if is_ours(session.strategy) else None

    def after_step(self, logs: Logs | None) -> None:
        """Notes the loss of a step, if metrics are served."""
        if process.current.serves_metrics and logs:
            loss = logs.get("loss")
            if loss is not None:
                curve.loss.note(loss)

    def end_fit(self) -> None:
        """Logs for which workers this one has waited."""
        process.current.report_stragglers()
