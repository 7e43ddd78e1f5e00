"""`fit` tells of itself: its beginning, the loss for the dashboard, and stragglers at its end."""

from __future__ import annotations

import contextlib

from tfdist._types import Logs
from tfdist.job import process
from tfdist.keras.session.participant import Participant
from tfdist.keras.session.session import FitSession, Session, is_in_fit_of
from tfdist.keras.workers import is_ours
from tfdist.observe.metrics import curve
from tfdist.observe.pauses import pauses


class Progress(Participant[FitSession]):
    """Notes the loss of each step of the outermost `fit`, and reports stragglers at its end.

    Until its first step has ended, `fit` begins: it traces functions and fills caches, for which no
    worker is called late.
    """

    _beginning = contextlib.ExitStack()

    @classmethod
    def of(cls, session: Session) -> Progress | None:
        """Returns the participant, if it takes part."""
        if not isinstance(session, FitSession) or is_in_fit_of(cls):
            return None
        return cls(session) if is_ours(session.strategy) else None

    def begin_fit(self) -> None:
        """Begins with tracing."""
        self._beginning = contextlib.ExitStack()
        self._beginning.enter_context(pauses.noted())
        self.session.call_at_end(self._beginning.close)

    def after_step(self, logs: Logs | None) -> None:
        """Notes the loss of a step, if metrics are served."""
        self._beginning.close()
        if process.current.serves_metrics and logs:
            loss = logs.get("loss")
            if loss is not None:
                curve.loss.note(loss)

    def end_fit(self) -> None:
        """Logs which workers were late."""
        self._beginning.close()
        process.current.report_stragglers()
