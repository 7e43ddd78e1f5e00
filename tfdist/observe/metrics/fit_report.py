"""The report of this process's `fit` for the dashboard: its curves, and where it stands."""

from __future__ import annotations

import time
from collections.abc import Callable

from tfdist._types import Logs
from tfdist.observe.metrics.curve import Curves
from tfdist.observe.metrics.fit_progress import FitProgress

# Seconds between two steps whose logs are noted: a step of a small model takes 2 ms.
PERIOD = 0.1


class FitReport:
    """Follows all calls of `fit` of a process: their curves continue, the newest one is told.

    Attributes:
      curves: of the numbers that `fit` logs.
      steps: the number of steps, of all calls together.
      state: where the newest `fit` stands; `None` before the first one.
    """

    def __init__(self) -> None:
        self.curves = Curves()
        self.steps = 0
        self.state: FitProgress | None = None
        self._due = 0.0

    def note_step(self, logs: Logs | None, state: Callable[[], FitProgress]) -> None:
        """Notes a step; some times a second also its logs, and where `fit` stands after it.

        Args:
          logs: of the step.
          state: returns where `fit` stands.
        """
        self.steps += 1
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + PERIOD
        self.state = state()
        if logs:
            self.curves.note(self.steps, logs)

    def note_results(self, logs: Logs, prefix: str = "") -> None:
        """Notes the logs of an epoch, or of its validation with the prefix "val_"."""
        self.curves.note(self.steps, logs, prefix)


# Of this process.
current = FitReport()
