"""Where a `fit` stands, as a process notes it and others read it."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class FitProgress:
    """Where a `fit` stands.

    Attributes:
      epoch: the current epoch, from 1; the last trained one after the end.
      epochs: of the whole `fit`, also the epochs that a former process has trained.
      batch: the trained batches of the current epoch.
      batches: all of them; `None` if their number is not known yet.
      done: the trained share of the `fit`, 0 to 1.
      remaining: estimated seconds until its end; `None` if they are not known yet.
      has_ended: whether it has ended, maybe before its last epoch.
    """

    epoch: int
    epochs: int
    batch: int
    batches: int | None
    done: float
    remaining: float | None
    has_ended: bool
