"""The trained share of a `fit`, and an estimate of the time that the rest of it takes."""

from __future__ import annotations

import time

from tfdist.keras.session.session import FitSession


class FitEstimate:
    """The share and the remaining time of one `fit`.

    The share counts epochs from 0, so that a job that continues from a backup does not begin again.
    Before the first epoch has ended, the number of its steps may not be known.

    Args:
      session: the `fit`.
    """

    def __init__(self, session: FitSession) -> None:
        self._session = session
        self._began: tuple[float, float] | None = None

    def begin(self) -> bool:
        """Notes where and when the training begins; returns whether it is the first call."""
        if self._began is not None:
            return False
        self._began = time.monotonic(), self.done
        return True

    @property
    def batches(self) -> int | None:
        """The number of batches of an epoch; `None` if it is not known."""
        fit = self._session
        batches = None if fit.data is None else fit.keras.known_batches(fit.data)
        return None if batches is None else int(batches)

    @property
    def done(self) -> float:
        """The trained share of the training, 0 to 1."""
        fit, batches = self._session, self.batches
        in_epoch = min(fit.batch / batches, 1.0) if batches else 0.0
        return min((fit.epoch + in_epoch) / max(fit.arguments["epochs"], 1), 1.0)

    def remaining(self, done: float) -> float | None:
        """Returns the estimated seconds until the end; `None` if they are not known.

        Args:
          done: the trained share.
        """
        if done >= 1.0:
            return 0.0
        if self._began is None or done <= self._began[1]:
            return None
        since, before = self._began
        return (time.monotonic() - since) * (1.0 - done) / (done - before)
