"""The request of workers at the end of an epoch."""

from __future__ import annotations

import dataclasses

from tfdist.control.service import Service
from tfdist.ps.epochs.metric_states import MetricStates


@dataclasses.dataclass(frozen=True)
class EpochRequest:
    """A worker posts its state at the end of an epoch; see ps/epochs/rounds.py for `phase`.

    The answer is the round's, or "waiting" after `wait` seconds. A request without a `state` posts
    nothing and only requests that answer.
    """

    fingerprint: str
    process: str
    rank: int
    fit: int
    epoch: int
    phase: int
    stop: bool
    state: MetricStates | None
    wait: float


EPOCHS = Service("Epochs", 1, "a parameter server")
EPOCH = EPOCHS.method(EpochRequest, is_long=True)
